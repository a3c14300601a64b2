"""Tally: what came of a run that is driven from outside, as pytest drives it: in process, perhaps of a part only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property

from attnkit_conformance import runner
from attnkit_conformance.headers import backend_facts, suite_facts
from attnkit_conformance.items import Item, items
from attnkit_conformance.measuring import Comparison
from attnkit_conformance.results import Footer, Header, Report, Result, Status
from attnkit_conformance.subject import Subject
from attnkit_conformance.verdict import verdict_of

NO_VERDICT = "in process, no verdict: use attnkit conform run"
_KINDS = ("answered", "refused", "outside", "unchecked", "failed")


class NothingComparedError(AssertionError):
    """A check passed without having compared anything: a fault of the suite, or of how it was called."""


class Tally:
    """The results of one backend.

    Parameters
    ----------
    subject
        The backend.
    level, seed
        What was asked for.
    """

    def __init__(self, subject: Subject, level: int, seed: int) -> None:
        self.subject = subject
        self.level, self.seed = level, seed
        self._started = datetime.now(UTC)
        self._results: dict[str, Result] = {}

    def add(self, result: Result) -> None:
        """Take a result; a later one of the same item counts."""
        self._results[result.id] = result

    @property
    def results(self) -> tuple[Result, ...]:
        """All results, in the order of the manifest, whatever the order of the run."""
        return tuple(self._results[id_] for id_ in self.manifest if id_ in self._results)

    @cached_property
    def manifest(self) -> tuple[str, ...]:
        """The ids of all items that a whole run has."""
        return tuple(item.id for item in items(self.level, seed=self.seed))

    @property
    def partial(self) -> bool:
        """Whether items are missing."""
        return len(self.results) < len(self.manifest)

    @property
    def unseen(self) -> bool:
        """Whether items ran and yet nothing was seen of the backend."""
        return bool(self._results) and set(self._kinds()) <= {"outside", "unchecked"}

    def title(self) -> list[str]:
        """Say what is under test, of which version, written for which contract, and what a run is worth."""
        said = self.subject.description
        worth = f"level {self.level}, seed {self.seed}, {NO_VERDICT}"
        return [f"attnkit conformance: {said.name} of {said.source}, contract {said.contract_version}; {worth}"]

    def lines(self) -> Iterator[str]:
        """Say what came of the items: what was not answered does not go unsaid."""
        kinds = self._kinds()
        total = ", ".join(f"{kinds[kind]} {kind}" for kind in _KINDS if kinds[kind])
        part = f"; partial: {len(self.results)} of {len(self.manifest)} items" if self.partial else ""
        yield f"{self.subject.name}: {'' if kinds['answered'] else 'nothing was answered; '}{total}{part}; {NO_VERDICT}"
        for outcome, count in Counter(map(_outcome, self.results)).most_common():
            if outcome not in ("answered", "failed"):
                yield f"{count:7} {outcome}"

    def report(self) -> Report:
        """Give the report of what came so far, which says that it is no verdict."""
        report = Report(header=self._header(), results=self.results)
        seconds = (datetime.now(UTC) - self._started).total_seconds()
        footer = Footer(counts=report.counts(), seconds=seconds, verdict=verdict_of(report))
        return report.model_copy(update={"footer": footer})

    def _header(self) -> Header:
        facts = suite_facts(self.manifest, self._started) | backend_facts(self.subject)
        return Header(**facts, level=self.level, seed=self.seed, partial=self.partial)

    def _kinds(self) -> Counter[str]:
        return Counter(_outcome(result).partition(" ")[0] for result in self.results)


def result_of(
    item: Item, subject: Subject, notes: Sequence[Comparison], *, error: BaseException | None, seconds: float
) -> Result:
    """Give what came of an item that someone else ran."""
    return runner.result_of(item, subject, notes, *_status(subject, error), seconds)


def reject_emptiness(subject: Subject, notes: Sequence[Comparison]) -> None:
    """Fail a check that passed and has shown nothing, although there was something to see."""
    __tracebackhide__ = True
    if not notes and not any(outcome.startswith("unchecked") for outcome in subject.outcomes):
        raise NothingComparedError("nothing was compared")


def _status(subject: Subject, error: BaseException | None) -> tuple[Status, str]:
    if isinstance(error, NothingComparedError):
        return "ERROR", str(error)
    if error is not None:
        return "FAIL", f"{type(error).__name__}: {error}"
    unchecked = any(outcome.startswith("unchecked") for outcome in subject.outcomes)
    return ("NOT_RUN" if unchecked else "PASS"), ""


def _outcome(result: Result) -> str:
    return result.outcome if result.status in ("PASS", "NOT_RUN") else "failed"
