"""Finding: from the error of a check to claims that a program can check, the most faithful first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from attnkit_conformance.measuring import Mismatch
from attnkit_conformance.repro.attempt import Failure
from attnkit_conformance.repro.claims import (
    Agrees,
    Array,
    Changed,
    Claim,
    Held,
    Index,
    Observed,
    Raises,
    Refuses,
    Returns,
    Right,
    Same,
    complaint,
    public_name,
)
from attnkit_conformance.repro.referee import Expected, Referee
from attnkit_conformance.repro.tape import Call, Run, live

_EVERYTHING: Final = slice(None)
_LATE: Final = 200


def claims(failure: Failure, referee: Referee) -> Iterator[Claim]:
    """Give claims that the backend may have broken; the last one says only what was seen."""
    numbers = [call.number for call in failure.calls]
    if failure.refusal is not None:
        waited = (call for call in failure.calls if call.number >= failure.refusal.first and call.computes)
        yield Refuses(failure.refusal.codes, frozenset(call.number for call in waited))
    if failure.raised:
        right, _ = referee(live(failure.calls, numbers[-1:]))
        yield from _about_error(failure, numbers[-1], right)
    if failure.named:
        kind = type(failure.run.errors[numbers[-1]])
        yield Raises(numbers[-1], public_name(kind), getattr(failure.case, "argument", ""))
    if isinstance(failure.error, Mismatch):
        yield from _compared(failure, failure.error)
    yield from _scanned(failure, referee)
    yield Changed(_observations(failure))


def _about_error(failure: Failure, number: int, right: Run) -> Iterator[Claim]:
    """Give the claim that a call raises nothing; or something else, if a correct backend does."""
    if number in right.errors:
        yield Raises(number, public_name(type(right.errors[number])))
    else:
        yield Returns(number, type(failure.run.errors[number]))


def _scanned(failure: Failure, referee: Referee) -> Iterator[Claim]:
    """Give a claim about every call of late that a correct backend answers otherwise.

    The latest come first, and a log-sum-exp after everything else: it is the less familiar number.
    """
    late = failure.calls[-_LATE:]
    right, expectations = referee(live(failure.calls, [call.number for call in late]))
    asked = [call.number for call in late if call.method == "reasons"]
    for call in sorted(late, key=lambda call: (_shows_lse(call), -call.number)):
        if call.method == "attention" and asked and asked[-1] < call.number:
            yield Agrees(asked[-1], call.number)
        if call.number in right.errors or call.number in failure.run.errors:
            if not (call.number in right.errors and call.number in failure.run.errors):
                yield from _about_error(failure, call.number, right)
        elif complaint(claim := Right(Observed(call.number)), failure.run, expectations):
            yield claim


def _shows_lse(call: Call) -> bool:
    return call.method == "numpy" and call.refs[:1] != () and call.refs[0].path == (1,)


def _compared(failure: Failure, error: Mismatch) -> Iterator[Claim]:
    """Give claims about what a comparison looked at."""
    cached = {call.number for call in failure.calls if call.method == "cache_count"} | _of_caches(failure)
    others = list(_places(failure, np.asarray(error.expected)))
    for observed, block in _places(failure, error.actual, error):
        expected = np.asarray(error.expected)[block]
        tau = None if error.tau is None else np.asarray(error.tau)[block]
        for other, _ in others if not block else ():
            if np.shares_memory(failure.run.values[other.call], error.expected) and other.call != observed.call:
                yield Same(observed, other, tau)
        if observed.call in cached:
            yield Right(Observed(observed.call))
        yield Held(observed, Expected(expected, tau, error.actual.dtype.name))
        for other, _ in others if not block else ():
            if other.call != observed.call:
                yield Same(observed, other, tau)


def _places(failure: Failure, array: Array, error: Mismatch | None = None) -> Iterator[tuple[Observed, Index]]:
    """Give the results that an array is a part of, or that hold the worst part of it; the latest first.

    With each comes the part of the array that it is.
    """
    found = _observations(failure)
    for number in sorted(found, key=lambda n: (not np.shares_memory(found[n], array), -n)):
        for index, shape in _parts(found[number], array):
            yield Observed(number, index, shape), ()
    if error is None:
        return
    at = _worst(error)
    for number in reversed(found):
        for block in _blocks(found[number], array):
            if all(axis == _EVERYTHING or axis.start <= n < axis.stop for axis, n in zip(block, at, strict=True)):
                yield Observed(number), block


def _observations(failure: Failure) -> dict[int, Array]:
    """Give every array that the suite got."""
    reads = (call.number for call in failure.calls if call.method in ("numpy", "cache_count"))
    values = {number: failure.run.values[number] for number in reads if number in failure.run.values}
    return {number: value for number, value in values.items() if isinstance(value, np.ndarray) and value.size}


def _of_caches(failure: Failure) -> set[int]:
    """Give the numbers of the calls that read what came from a cache."""
    from_caches = {call.number for call in failure.calls if call.method == "cache_call"}
    return {call.number for call in failure.calls if call.method == "numpy" and call.refs[0].call in from_caches}


def _parts(whole: Array, part: Array) -> Iterator[tuple[Index, tuple[int, ...] | None]]:
    """Give the index, and the shape, that makes a part of a whole: all of it, some rows, or one."""
    if whole.size == part.size and _equal(whole.reshape(part.shape), part):
        yield (), None if whole.shape == part.shape else part.shape
        return
    for axis in range(whole.ndim):
        before = (_EVERYTHING,) * axis
        for start in range(whole.shape[axis]):
            several = (*before, slice(start, start + part.shape[axis])) if part.ndim == whole.ndim else None
            one: Index = (*before, start)
            for index in (one,) if several is None else (several, one):
                if whole[index].size < whole.size and _equal(whole[index], part):
                    yield index, None
                    return


def _blocks(block: Array, whole: Array) -> Iterator[tuple[slice, ...]]:
    """Give where a block lies in a whole that is longer along one axis."""
    for axis in range(whole.ndim if block.ndim == whole.ndim else 0):
        size = block.shape[axis]
        for start in range(whole.shape[axis] - size + 1 if size < whole.shape[axis] else 0):
            place = (*(_EVERYTHING,) * axis, slice(start, start + size), *(_EVERYTHING,) * (whole.ndim - axis - 1))
            if _equal(whole[place], block):
                yield place


def _equal(one: Array, other: Array) -> bool:
    """Tell whether two arrays hold the same numbers, or the same truths."""
    if one.shape != other.shape or (one.dtype.kind == "b") != (other.dtype.kind == "b"):
        return False
    return np.array_equal(_plain(one), _plain(other), equal_nan=True)


def _plain(array: Array) -> Any:
    return np.asarray(array, np.float64)


def _worst(error: Mismatch) -> tuple[int, ...]:
    """Give the index of the worst element."""
    with np.errstate(all="ignore"):
        apart = np.abs(_plain(error.actual) - _plain(error.expected))
        size = apart if error.tau is None else apart / np.where(error.tau == 0, 1e-300, error.tau)
    size = np.where(np.isnan(size), np.inf, size)
    return tuple(map(int, np.unravel_index(int(size.argmax()), size.shape)))
