"""What a check compared and how far apart it was: noted by the comparisons, read by whoever runs the check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of two arrays.

    Attributes
    ----------
    what
        What was compared, in words.
    count
        How many elements.
    exact
        Every bit had to be the same; ``ratio`` is then 0 or infinity.
    ratio
        The largest error in units of its bound ``tau``.
    rms
        The root of the mean of their squares.
    bias
        ``mean(sign(expected) * error / tau)``: away from 0 where errors point one way, as after truncation.
    at
        Index of the worst element.
    expected, actual, tau
        What stands there.
    term
        The term that ``tau`` is mostly made of, where it was asked for.
    """

    what: str
    count: int
    exact: bool
    ratio: float
    rms: float = 0.0
    bias: float = 0.0
    at: tuple[int, ...] = ()
    expected: float = 0.0
    actual: float = 0.0
    tau: float = 0.0
    term: str = ""


class Mismatch(AssertionError):  # noqa: N818  # messages begin with its name, and say what is wrong
    """A comparison that failed, with its arrays.

    Attributes
    ----------
    what
        What was compared, in words.
    actual, expected, tau
        The arrays; ``tau`` is ``None`` where every bit had to be the same.
    """

    def __init__(self, message: str, what: str, actual: Array, expected: Array, tau: Array | None = None) -> None:
        super().__init__(message)
        self.what, self.actual, self.expected, self.tau = what, actual, expected, tau


_NOTES: ContextVar[list[Comparison] | None] = ContextVar("attnkit_conformance_notes", default=None)


@contextmanager
def measuring() -> Iterator[list[Comparison]]:
    """Gather the comparisons that are made inside."""
    notes: list[Comparison] = []
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def held(what: str, count: int = 1) -> None:
    """Note that something held that has no numbers to be apart: a refusal, an error, a shape."""
    note(Comparison(what, count, exact=True, ratio=0.0))


def note(comparison: Comparison) -> None:
    """Add a comparison to those that are gathered, if any are."""
    notes = _NOTES.get()
    if notes is not None:
        notes.append(comparison)
