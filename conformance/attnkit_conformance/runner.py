"""Runner: items against one backend, one result each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from attnkit_conformance.items import Item
from attnkit_conformance.measuring import Comparison, measuring
from attnkit_conformance.results import Result, Status, Worst
from attnkit_conformance.subject import Subject


def run_items(
    chosen: Iterable[Item], subject: Subject, on_result: Callable[[Result], None] | None = None
) -> Iterator[Result]:
    """Run items one after the other, and give a result for each as it comes."""
    for item in chosen:
        result = run_item(item, subject)
        if on_result is not None:
            on_result(result)
        yield result


def run_item(item: Item, subject: Subject) -> Result:
    """Run one item; never raises for what a backend does."""
    subject.outcomes.clear()
    started = time.perf_counter()
    with measuring() as notes:
        status, message = _status(item, subject, notes)
    outcome = ", ".join(subject.outcomes)
    return Result(
        id=item.id,
        requirement=item.requirement.id,
        level=item.requirement.level,
        dtype=item.case.on(subject.capabilities).dtype,
        status=status,
        outcome=outcome,
        message=message,
        seconds=time.perf_counter() - started,
        comparisons=len(notes),
        elements=sum(note.count for note in notes),
        worst=worst_of(notes),
    )


def worst_of(notes: Iterable[Comparison]) -> Worst | None:
    """Give the comparison with the largest ratio, of those within a bound if there are any."""
    found = max(notes, key=lambda note: (note.ratio > 1, not note.exact, note.ratio), default=None)
    if found is None:
        return None
    return Worst(**{name: getattr(found, name) for name in Worst.model_fields})


def _status(item: Item, subject: Subject, notes: list[Comparison]) -> tuple[Status, str]:
    try:
        item.run(subject)
    except Exception as error:  # a backend may raise anything
        return "FAIL", f"{type(error).__name__}: {error}"
    if any(outcome.startswith("unchecked") for outcome in subject.outcomes):
        return "NOT_RUN", ""
    return ("PASS", "") if notes else ("ERROR", "nothing was compared")
