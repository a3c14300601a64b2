"""Claims: what a tape must show, each a single thing that a program can check in a few lines."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.repro.referee import Expectations, Expected
from attnkit_conformance.repro.tape import Run, UnresolvedError
from attnkit_conformance.subject import codes_of

Array = np.ndarray[Any, Any]
Index = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Observed:
    """A part of what a call gave to the suite, as the check looked at it.

    Attributes
    ----------
    call
        The call's number.
    index, shape
        The part: an index, then a shape.
    """

    call: int
    index: Index = ()
    shape: tuple[int, ...] | None = None

    def of(self, run: Run) -> Array | None:
        """Give it, if it is there."""
        if self.call not in run.values:
            return None
        try:
            found = np.asarray(run.values[self.call])[self.index]
            return found if self.shape is None else found.reshape(self.shape)
        except (IndexError, ValueError):
            return None


@dataclass(frozen=True, eq=False)
class Right:
    """What a call gave lies within the bound of the oracle, or is exactly what a correct backend gives."""

    observed: Observed


@dataclass(frozen=True, eq=False)
class Held:
    """What a call gave is what the check that failed expected."""

    observed: Observed
    expected: Expected


@dataclass(frozen=True, eq=False)
class Same:
    """Two calls gave the same: every bit, or within a bound."""

    observed: Observed
    other: Observed
    tau: Array | None


@dataclass(frozen=True, eq=False)
class Raises:
    """A call raises an error of this name, with a certain word in its message."""

    call: int
    error: str
    word: str = ""


@dataclass(frozen=True, eq=False)
class Returns:
    """A call does not raise the error that it raised."""

    call: int
    error: type[Exception]


@dataclass(frozen=True, eq=False)
class Refuses:
    """The first of these calls that raises anything raises ``UnsupportedError`` with these codes, and one does."""

    codes: frozenset[str]
    calls: frozenset[int]


@dataclass(frozen=True, eq=False)
class Agrees:
    """A call is refused with the codes that ``unsupported`` gave for it, or taken where it gave none."""

    reasons: int
    call: int


@dataclass(frozen=True, eq=False)
class Changed:
    """Results are no longer what they were when a check failed on something that it works out from them."""

    seen: Mapping[int, Array]


Claim = Right | Held | Same | Raises | Returns | Refuses | Agrees | Changed


def numbers_of(claim: Claim) -> frozenset[int]:
    """Give the numbers of the calls that a claim speaks of."""
    match claim:
        case Right(observed) | Held(observed):
            return frozenset({observed.call})
        case Same(observed, other):
            return frozenset({observed.call, other.call})
        case Raises(call) | Returns(call):
            return frozenset({call})
        case Refuses(_, calls):
            return calls
        case Agrees(reasons, call):
            return frozenset({reasons, call})
        case Changed(seen):
            return frozenset(seen)


def complaint(claim: Claim, run: Run, expectations: Expectations) -> str:
    """Say how a run breaks a claim; empty where it does not, and where it does not come so far."""
    match claim:
        case Right(observed):
            return _wrong(observed.of(run), expectations.get(observed.call))
        case Held(observed, expected):
            return _apart(observed.of(run), expected.values, expected.tau)
        case Same(observed, other, tau):
            return _apart(observed.of(run), other.of(run), tau)
        case Raises(call, error, word):
            return _not_raised(run, call, error, word)
        case Returns(call, kind):
            return str(run.errors[call]) or kind.__name__ if type(run.errors.get(call)) is kind else ""
        case Refuses(codes, calls):
            return _not_refused(run, codes, calls)
        case Agrees(reasons, call):
            return _at_odds(run, reasons, call)
        case Changed(seen):
            same = bool(seen) and all(
                number in run.values and not _apart(run.values[number], seen[number], None) for number in seen
            )
            return "the results are those that the check failed on" if same else ""


def unlike(actual: Array, expected: Expected) -> str:
    """Say how shape or element type are wrong."""
    if actual.shape != expected.values.shape:
        return f"shape must be {list(expected.values.shape)}, got {list(actual.shape)}"
    if actual.dtype.name != expected.dtype:
        return f"dtype must be {expected.dtype}, got {actual.dtype.name}"
    return ""


def public_name(error: type[BaseException]) -> str:
    """Give the name that a program can catch an error by: ``ak.ShapeError``, or one of Python's own."""
    for kind in error.__mro__:
        if kind.__name__ in ak.__all__:
            return f"ak.{kind.__name__}"
        if hasattr(builtins, kind.__name__):
            return kind.__name__
    raise TypeError(f"{error!r} is no error")


def _wrong(actual: Array | None, expected: Expected | None) -> str:
    if actual is None or expected is None:
        return ""
    return unlike(actual, expected) or _apart(actual, expected.values, expected.tau)


def _apart(actual: Array | None, expected: Array | None, tau: Array | None) -> str:
    """Say how many elements are not what they must be; the sign of zero does not count."""
    if actual is None or expected is None:
        return ""
    if actual.shape != expected.shape:
        return f"shape must be {list(expected.shape)}, got {list(actual.shape)}"
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    if tau is not None:
        with np.errstate(invalid="ignore"):
            same |= np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)) <= tau
    return "" if same.all() else f"{int((~same).sum())} of {same.size} elements are wrong"


def _not_raised(run: Run, call: int, error: str, word: str) -> str:
    if call in run.values:
        return f"the call must raise {error}, it gave a result"
    found = run.errors.get(call)
    if found is None or isinstance(found, UnresolvedError):
        return ""
    if public_name(type(found)) == error:
        return "" if word in str(found) else f"the message must name {word}, got: {found}"
    return f"the call must raise {error}, it raised {type(found).__name__}: {found}"


def _not_refused(run: Run, codes: frozenset[str], calls: frozenset[int]) -> str:
    error = next((run.errors[number] for number in sorted(calls) if number in run.errors), None)
    if error is None:
        return f"{', '.join(sorted(codes))}: not declared, yet the call gave a result"
    if not isinstance(error, ak.UnsupportedError):
        return f"the call must raise UnsupportedError, it raised {type(error).__name__}: {error}"
    return "" if codes <= codes_of(error) else f"the refusal must carry the codes {sorted(codes)}: {error}"


def _at_odds(run: Run, reasons: int, call: int) -> str:
    if reasons not in run.values:
        return ""
    said, error = set(run.values[reasons]), run.errors.get(call)
    found = codes_of(error) if isinstance(error, ak.UnsupportedError) else set()
    return "" if said == found else f"unsupported gives the codes {sorted(said)}, the call {sorted(found)}"
