"""Difference of two reports: what a change of a backend made better, and what it made worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from attnkit_conformance.reports.kinds import kind_of
from attnkit_conformance.reports.matrix import declared_text
from attnkit_conformance.results import Real, Report, Result

GROWTH: Final = 2.0
"""An error that grew by more than this factor is told, even where it stays within its bound."""
FLOOR: Final = 0.05
"""Errors below this share of their bound are noise."""
_TEXTS = ("suite", "contract", "requirements", "backend", "path", "source", "contract_version")
_NUMBERS = ("level", "seed", "sample", "partial", "isolated")
_TITLES = {
    "conditions": "Not run under the same conditions",
    "capabilities": "Declared differently",
    "newly_failing": "Newly failing",
    "newly_passing": "Newly passing",
    "outcomes": "Another outcome",
    "regressions": f"Error more than {GROWTH:g} times what it was, in units of its bound",
    "added": "Added",
    "removed": "Removed",
}
_MODEL = ConfigDict(frozen=True, extra="forbid")


class Change(BaseModel):
    """Something that is not what it was; an empty string where there was or is nothing."""

    model_config = _MODEL

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old or 'nothing'} -> {self.new or 'nothing'}"


class Regression(BaseModel):
    """An error that grew, in units of its bound."""

    model_config = _MODEL

    id: str
    old: Real
    new: Real

    def __str__(self) -> str:
        return f"{self.id}: {self.old:.3g} -> {self.new:.3g}"


class Difference(BaseModel):
    """How a report differs from an older one.

    Attributes
    ----------
    conditions
        What was run differently; then the rest may have nothing to do with the backend.
    capabilities
        What is declared differently.
    newly_failing, newly_passing
        Items that began to fail or ceased to, with both statuses.
    outcomes
        Other items that came to something else: say ``"answered"``, and now ``"refused"`` or ``"not run"``.
    regressions
        Items that pass in both, with an error that grew by more than ``GROWTH``.
    added, removed
        Items that only one of them has, with what came of them.
    """

    model_config = _MODEL

    conditions: tuple[Change, ...]
    capabilities: tuple[Change, ...]
    newly_failing: tuple[Change, ...]
    newly_passing: tuple[Change, ...]
    outcomes: tuple[Change, ...]
    regressions: tuple[Regression, ...]
    added: tuple[Change, ...]
    removed: tuple[Change, ...]

    @property
    def is_worse(self) -> bool:
        """Whether anything was lost: an item that fails, is not answered or is gone, a capability, accuracy."""
        lost = [change for change in self.outcomes if change.old == "answered" or change.new == "not run"]
        failing = [change for change in self.added if change.new == "failed"]
        withdrawn = [change for change in self.capabilities if (change.old, change.new) == ("yes", "no")]
        return bool(self.newly_failing or self.removed or self.regressions or lost or failing or withdrawn)

    def lines(self) -> Iterator[str]:
        """Say it in lines for people: a title for everything that there is, and a line for each of it."""
        for name, title in _TITLES.items():
            found = getattr(self, name)
            if found:
                yield f"{title}: {len(found)}"
                yield from (f"  {change}" for change in found)
        yield "The newer one is worse." if self.is_worse else "The newer one is not worse."


def compare(old: Report, new: Report) -> Difference:
    """Compare a report with an older one, item by item."""
    before = {result.id: result for result in old.results}
    after = {result.id: result for result in new.results}
    both = [(before[name], after[name]) for name in before if name in after]
    turns = [(_turn(*pair), *pair) for pair in both]
    failing, passing = (
        tuple(Change(name=a.id, old=a.status, new=b.status) for turn, a, b in turns if turn == name)
        for name in ("failing", "passing")
    )
    return Difference(
        conditions=tuple(_changes(_conditions(old), _conditions(new))),
        capabilities=tuple(_changes(old.header.capabilities, new.header.capabilities)),
        newly_failing=failing,
        newly_passing=passing,
        outcomes=tuple(Change(name=a.id, old=kind_of(a), new=kind_of(b)) for turn, a, b in turns if turn == "other"),
        regressions=tuple(_regressions(both)),
        added=tuple(Change(name=name, old="", new=kind_of(after[name])) for name in after if name not in before),
        removed=tuple(Change(name=name, old=kind_of(before[name]), new="") for name in before if name not in after),
    )


def _turn(old: Result, new: Result) -> str:
    """Tell whether an item began to fail, ceased to, or came to something else; an empty string for none of these."""
    one, other = kind_of(old), kind_of(new)
    if one == other:
        return ""
    if other == "failed":
        return "failing"
    return "passing" if one == "failed" and other != "not run" else "other"


def _regressions(both: list[tuple[Result, Result]]) -> Iterator[Regression]:
    """Give the errors that grew; one below the floor counts as the floor."""
    for old, new in both:
        if not (old.status == new.status == "PASS" and old.worst and new.worst):
            continue
        if new.worst.ratio > GROWTH * max(old.worst.ratio, FLOOR):
            yield Regression(id=old.id, old=old.worst.ratio, new=new.worst.ratio)


def _conditions(report: Report) -> dict[str, str]:
    header = report.header
    told = {name: str(getattr(header, name) or "") for name in _TEXTS}
    told |= {name: str(getattr(header, name)) for name in _NUMBERS}
    return {**told, **{f"environment {name}": text for name, text in header.environment.items()}}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Give the names whose values differ, of those that only one side has too."""
    for name in {**old, **new}:
        one, other = (declared_text(side[name]) if name in side else "" for side in (old, new))
        if one != other:
            yield Change(name=name, old=one, new=other)
