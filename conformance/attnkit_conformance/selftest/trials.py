"""Trials: each miniature through the front door, in a process of its own, and the verdict on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnkit_conformance.conformance import run_conformance
from attnkit_conformance.results import Report
from attnkit_conformance.selftest.miniatures import MINIATURES, Miniature

TIMEOUT = 5.0
"""Seconds for one item; enough for a backend that does not hang."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the suite made of a miniature.

    Attributes
    ----------
    miniature
        The backend.
    report
        Its report.
    """

    miniature: Miniature
    report: Report

    def __str__(self) -> str:
        verdict = "" if self.report.footer is None else self.report.footer.verdict
        return f"{self.miniature}: {verdict}; {', '.join(sorted(self.failed)) or 'nothing fails'}"

    @property
    def failed(self) -> frozenset[str]:
        """Ids of the requirements of which an item came to what it must come to."""
        status = self.miniature.status
        return frozenset(result.requirement for result in self.report.results if result.status == status)

    @property
    def rejected(self) -> bool:
        """The verdict is that it does not conform, or would be if all items had been run."""
        verdict = "" if self.report.footer is None else self.report.footer.verdict
        return verdict.startswith("NOT CONFORMANT") or (self.report.header.partial and " failure" in verdict)

    @property
    def ok(self) -> bool:
        """It is rejected, for what it must be rejected for, and the suite itself did not break."""
        broken = any(result.status == "ERROR" for result in self.report.results)
        return self.rejected and not broken and self.failed >= frozenset(self.miniature.requirements)


def trials(*names: str, full: bool = False) -> Iterator[Trial]:
    """Run miniatures, by default all of them."""
    for miniature in MINIATURES:
        if not names or str(miniature) in names:
            yield trial(miniature, full=full)


def trial(miniature: Miniature, *, full: bool = False) -> Trial:
    """Run a miniature: all of level 0 where that says it all, else the items that must name it, or all of level 2."""
    if miniature.is_broken:
        return Trial(miniature, run_conformance(miniature.target, level=0, timeout=TIMEOUT))
    only = () if full else miniature.only or miniature.requirements
    return Trial(miniature, run_conformance(miniature.target, level=2, only=only, timeout=TIMEOUT))
