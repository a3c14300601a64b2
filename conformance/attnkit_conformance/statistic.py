"""Statistics over all elements of an array, each of which may well lie within its own bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from attnkit_conformance.measuring import Comparison, Mismatch, note

if TYPE_CHECKING:
    from attnkit_conformance.cases import Array

DIRECTION: Final = 0.03
"""Largest mean of error over bound, signed by the truth; chance makes it 0.01 at most in 20 000 elements."""

EXCESS: Final = 1.1
"""Largest root of the mean square of error over predicted deviation; chance makes it 1.02 at most."""


def assert_two_sided(actual: Array, expected: Array, tau: Array, *, what: str) -> None:
    """Check that errors, in units of their bounds, point away from 0 as often as towards it."""
    __tracebackhide__ = True
    direction = float((np.sign(expected) * (np.asarray(actual, np.float64) - expected) / tau).mean())
    arrays = f"direction of the errors of {what}", actual, expected, tau
    _assert_within(direction, DIRECTION, "numbers are cut off in place of being rounded", *arrays)


def assert_size(actual: Array, expected: Array, deviation: Array, *, what: str) -> None:
    """Check that the root of the mean square of the errors is what their predicted deviations allow."""
    __tracebackhide__ = True
    excess = float(np.sqrt(np.square((np.asarray(actual, np.float64) - expected) / deviation).mean()))
    arrays = f"size of the errors of {what}", actual, expected, deviation
    _assert_within(excess, EXCESS, "something is rounded that the declared numerics do not tell", *arrays)


def _assert_within(
    found: float, limit: float, meaning: str, what: str, actual: Array, expected: Array, tau: Array
) -> None:
    __tracebackhide__ = True
    note(Comparison(what, actual.size, exact=False, ratio=abs(found) / limit, actual=found, tau=limit))
    if not abs(found) <= limit:
        raise Mismatch(
            f"{what}: {found:.3g} over {actual.size} elements, must be at most {limit:g}: {meaning}",
            *(what, actual, expected, tau),
        )
