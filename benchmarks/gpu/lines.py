"""Line: one thing that was asked of a GPU, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table

State = Literal["right", "wrong", "measured", "not run"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report.

    Attributes
    ----------
    part, name
        What was asked.
    state
        ``"right"`` and ``"wrong"`` of checks; ``"measured"`` of figures; ``"not run"`` with the reason in ``note``.
    figures
        Name -> number, with the unit in the name.
    note
        What else there is to say.
    """

    part: str
    name: str
    state: State
    figures: dict[str, float]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give the line as JSON-ready data."""
        return asdict(self)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """What a table shows."""
        figures = ", ".join(f"{name} {value:.3g}" for name, value in self.figures.items())
        return self.part, self.name, self.state, figures, self.note


_HEADINGS = ("part", "what", "state", "figures", "note")


def table(lines: Iterable[Line]) -> Table:
    """Lay lines out for a terminal."""
    grid = Table(*_HEADINGS)
    for line in lines:
        grid.add_row(*line.cells)
    return grid


def markdown(lines: Iterable[Line]) -> str:
    """Lay lines out for a document."""
    rows = [_HEADINGS, tuple("---" for _ in _HEADINGS), *(line.cells for line in lines)]
    return "".join(
        "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |\n" for row in rows
    )
