"""What the page shows: the numbers of a report, gathered by requirement and element type."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from attnkit_conformance.cases import DTYPES
from attnkit_conformance.reports.kinds import Kind, count, kind_of
from attnkit_conformance.reports.matrix import worst_ratio
from attnkit_conformance.requirements import LEVELS, Requirement, requirements
from attnkit_conformance.results import Report, Result
from attnkit_conformance.verdict import is_conformant

TILE_ROWS, TILE_COLUMNS = 64, 8  # the tile that most kernels give to a block of queries, and to a vector load
SCALE = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Upper ends of the steps of the heat map; what lies above the last one fails."""
_GOOD = r"((?:NOT )?CONFORMANT|CUSTOM [0-9a-f]{12})(?: WITH WAIVERS\(\d+\))?"
_VERDICT = re.compile(rf"({_GOOD}|[A-Z ]+):? (.*)", re.DOTALL)
_WORST_FIRST: tuple[Kind, ...] = ("failed", "not run", "waived", "answered", "refused", "outside")


@dataclass(frozen=True)
class Verdict:
    """The verdict as it stands on top of the page: its first words, the rest, and how they look."""

    word: str
    rest: str
    tone: str
    sign: str


@dataclass(frozen=True)
class Cell:
    """The results of one requirement in one element type."""

    results: tuple[Result, ...]

    @cached_property
    def counts(self) -> dict[Kind, int]:
        """How many of each kind, what is wrong first; kinds that do not occur are left out."""
        found = count(self.results)
        return {kind: found[kind] for kind in _WORST_FIRST if found[kind]}

    @property
    def kind(self) -> Kind | None:
        """What the cell comes to: the first of its kinds."""
        return next(iter(self.counts), None)

    @cached_property
    def ratio(self) -> float | None:
        """The largest error in units of its bound, where anything was compared within a bound."""
        return worst_ratio(self.results)

    @property
    def step(self) -> str:
        """The step of the heat map: a number, ``"over"``, ``"exact"`` where all bits were the same, or ``""``."""
        if self.counts.get("failed"):
            return "over"
        if self.ratio is None:
            return "exact" if self.counts.get("answered") else ""
        return str(next((step for step, end in enumerate(SCALE) if self.ratio <= end), "over"))

    @property
    def figure(self) -> str:
        """What stands in the heat map."""
        if self.counts.get("failed") and not (self.ratio and self.ratio > 1):
            return "✗"
        return {"exact": "=", "": "·"}.get(self.step, "") or ratio_text(self.ratio)


@dataclass(frozen=True)
class Entry:
    """A requirement, and what came of it."""

    id: str
    requirement: Requirement | None
    results: tuple[Result, ...]

    @property
    def title(self) -> str:
        """A few words; of a requirement that this suite does not know, none."""
        return self.requirement.title if self.requirement else ""

    @property
    def level(self) -> int:
        """The level, as the report says."""
        return self.results[0].level

    @cached_property
    def whole(self) -> Cell:
        """All of its results."""
        return Cell(self.results)

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """Its element types."""
        return frozenset(result.dtype for result in self.results)

    def cell(self, dtype: str) -> Cell:
        """Its results in one element type."""
        return Cell(tuple(result for result in self.results if result.dtype == dtype))

    def of(self, kind: Kind) -> list[Result]:
        """Its results of one kind, the worst first."""
        chosen = [result for result in self.results if kind_of(result) == kind]
        return sorted(chosen, key=lambda result: -result.worst.ratio if result.worst else 0)

    @cached_property
    def places(self) -> Counter[tuple[int, int]]:
        """How many of its failures are worst at each row and column of a tile."""
        return Counter(place for result in self.of("failed") if (place := tile_place(result)))


@dataclass(frozen=True)
class Page:
    """A report as the page shows it."""

    report: Report

    @cached_property
    def entries(self) -> list[Entry]:
        """Every requirement that the report has results of: by level, then in the order of the requirements."""
        known = {requirement.id: requirement for requirement in requirements()}
        order = {name: place for place, name in enumerate(known)}
        found: dict[str, list[Result]] = {}
        for result in self.report.results:
            found.setdefault(result.requirement, []).append(result)
        entries = [Entry(name, known.get(name), tuple(results)) for name, results in found.items()]
        return sorted(entries, key=lambda entry: (entry.level, order.get(entry.id, len(order)), entry.id))

    @property
    def levels(self) -> Mapping[int, list[Entry]]:
        """The same by level."""
        return {level: chosen for level in LEVELS if (chosen := [e for e in self.entries if e.level == level])}

    @cached_property
    def dtypes(self) -> list[str]:
        """Element types that were run, the suite's own order first."""
        found = {result.dtype for result in self.report.results}
        return [*(name for name in DTYPES if name in found), *sorted(found - set(DTYPES))]

    @cached_property
    def counts(self) -> Counter[Kind]:
        """How many results of each kind."""
        return count(self.report.results)

    @cached_property
    def failing(self) -> list[Entry]:
        """Requirements that something failed of."""
        return [entry for entry in self.entries if entry.whole.counts.get("failed")]

    @property
    def verdict(self) -> Verdict:
        """The verdict; of a run that was cut short there is none."""
        told = self.report.footer.verdict if self.report.footer else "NO VERDICT: the run was cut short"
        parts = _VERDICT.fullmatch(told)
        word, rest = (parts[1], parts[3]) if parts else (told, "")
        if self.counts["failed"]:
            return Verdict(word, rest, "bad", "✗")
        return Verdict(word, rest, "good", "✓") if is_conformant(told) else Verdict(word, rest, "open", "○")

    @property
    def reasons(self) -> Counter[str]:
        """Why items were not run, and how many for each reason."""
        return Counter(
            result.outcome or result.message or "no reason given"
            for result in self.report.results
            if result.status == "NOT_RUN"
        )

    @property
    def ratio(self) -> float | None:
        """The largest error in units of its bound, of what passes."""
        return worst_ratio(result for result in self.report.results if result.status == "PASS")


def moment_text(moment: str) -> str:
    """Write a time as people do; one that is not ISO 8601 stays as it is."""
    try:
        return f"{datetime.fromisoformat(moment):%-d %B %Y, %H:%M %Z}"
    except ValueError:
        return moment


def duration_text(seconds: float) -> str:
    """Write a duration in seconds, or in minutes and seconds."""
    return f"{seconds:.3g} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def tile_place(result: Result) -> tuple[int, int] | None:
    """Give row mod 64 and column mod 8 of the worst element, where it is one of an output that fails."""
    worst = result.worst
    if worst is None or not fails(result) or len(worst.at) != 4:
        return None
    return worst.at[2] % TILE_ROWS, worst.at[3] % TILE_COLUMNS


def fails(result: Result) -> bool:
    """Tell whether its worst comparison is what it fails by: not all that fails does so by a number."""
    return kind_of(result) == "failed" and result.worst is not None and not result.worst.ratio <= 1


def ratio_text(ratio: float | None) -> str:
    """Write an error in units of its bound in five characters."""
    if ratio is None:
        return "–"
    if not math.isfinite(ratio):
        return "NaN" if math.isnan(ratio) else "∞"
    if ratio < 0.005:
        return "0" if ratio == 0 else "<.01"
    if ratio < 1e4:
        return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    return f"{ratio:.0e}".replace("e+0", "e").replace("e+", "e")
