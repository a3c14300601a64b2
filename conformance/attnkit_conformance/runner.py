"""Runner: one item against one backend, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from attnkit_conformance.harness.failures import BackendDied, BackendHung, is_from_backend
from attnkit_conformance.items import Item
from attnkit_conformance.measuring import Comparison, measuring
from attnkit_conformance.results import Result, Status, Worst
from attnkit_conformance.subject import Subject

LIMIT = 60.0
"""Seconds that a backend may take for all calls of one item together."""


def run_item(item: Item, subject: Subject, limit: float = LIMIT) -> Result:
    """Run one item; never raises for what a backend does."""
    subject.outcomes.clear()
    subject.harness.allow(limit)
    started = time.perf_counter()
    with measuring() as notes:
        status, message = _status(item, subject, notes)
    return result_of(item, subject, notes, status, message, time.perf_counter() - started)


def result_of(
    item: Item, subject: Subject, notes: Sequence[Comparison], status: Status, message: str, seconds: float
) -> Result:
    """Give the result of an item that was run."""
    return Result(
        id=item.id,
        requirement=item.requirement.id,
        level=item.requirement.level,
        dtype=item.case.on(subject.capabilities).dtype,
        status=status,
        outcome=", ".join(subject.outcomes),
        message=message,
        seconds=seconds,
        comparisons=len(notes),
        elements=sum(note.count for note in notes),
        worst=worst_of(notes),
    )


def not_run(item: Item, why: str) -> Result:
    """Give the result of an item that was not run."""
    requirement, dtype = item.requirement, item.case.dtype
    return Result(
        id=item.id, requirement=requirement.id, level=requirement.level, dtype=dtype, status="NOT_RUN", outcome=why
    )


def worst_of(notes: Iterable[Comparison]) -> Worst | None:
    """Give the comparison with the largest ratio, of those within a bound if there are any."""
    found = max(notes, key=lambda note: (note.ratio > 1, not note.exact, note.ratio), default=None)
    if found is None:
        return None
    return Worst(**{name: getattr(found, name) for name in Worst.model_fields})


def _status(item: Item, subject: Subject, notes: Sequence[Comparison]) -> tuple[Status, str]:
    error: Exception | None = None
    try:
        item.run(subject)
    except Exception as caught:  # a backend may raise anything
        error = caught
    gone = subject.harness.gone  # which a check that expects errors may have taken for one
    error = gone or error
    if error is not None:
        return _failed(error, subject)
    if any(outcome.startswith("unchecked") for outcome in subject.outcomes):
        return "NOT_RUN", ""
    return ("PASS", "") if notes else ("ERROR", "nothing was compared")


def _failed(error: Exception, subject: Subject) -> tuple[Status, str]:
    if isinstance(error, BackendHung):
        return "TIMEOUT", str(error)
    if isinstance(error, BackendDied):
        return "CRASH", str(error)
    lines = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    own = subject.harness.is_remote and not is_from_backend(error)
    return ("ERROR" if own else "FAIL"), lines
