"""Result: one measured line, its bar and its goal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report; smaller is better.

    Attributes
    ----------
    name
        What was measured, against what.
    measured, bar, goal
        In ``unit``; ``None`` where it could not be measured, or where none is set.
    unit
        ``"x"`` for a ratio of times.
    note
        How steady the baseline was, or why nothing was measured.
    """

    name: str
    measured: float | None
    bar: float | None
    goal: float | None = None
    unit: str = "x"
    note: str = ""

    @property
    def verdict(self) -> str:
        """``goal``, ``bar`` (met), ``missed``, ``measured`` where no bar is set, or ``not run``."""
        if self.measured is None:
            return "not run"
        if self.goal is not None and self.measured <= self.goal:
            return "goal"
        if self.bar is None:
            return "measured"
        return "bar" if self.measured <= self.bar else "missed"

    def to_dict(self) -> dict[str, Any]:
        """Give the line as JSON-ready data."""
        return {**asdict(self), "verdict": self.verdict}


Benchmark = Callable[[], Iterable[Result]]


def table(results: Iterable[Result]) -> Table:
    """Lay results out for a terminal."""
    grid = Table("benchmark", "measured", "bar", "goal", "verdict", "note", title="smaller is better")
    for result in results:
        cells = [_number(value, result.unit) for value in (result.measured, result.bar, result.goal)]
        grid.add_row(result.name, *cells, result.verdict, result.note)
    return grid


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.3g} {unit}"
