"""Judging: two answers to one request, in units of their bounds, and the oracle between them.

Both bounds are derived from the inputs: ``tau_A`` and ``tau_B`` say how far each side may be from the truth. So two
correct sides are never further apart than ``tau_A + tau_B``, and where they are, at least one is beyond its own bound:
that one is to blame, and no vote is needed.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

import attnkit as ak
from attnkit.tolerance import Arithmetic, Tolerance
from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.sides import Failed, Given, Refused
from attnkit_conformance.custom import reason_of
from attnkit_conformance.subject import Answer, lse_dtype

Array = np.ndarray[Any, Any]
Name = Literal["A", "B"]
NAMES: Final[tuple[Name, Name]] = ("A", "B")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One array of an answer, compared: the output, or the log-sum-exp.

    Attributes
    ----------
    what
        ``"output"`` or ``"lse"``.
    apart
        ``|A - B| / (tau_A + tau_B)``, element by element; infinite where only one is NaN, or an infinity.
    error
        For each side ``|side - truth| / tau``; ``None`` where it did not give the array.
    given
        What each side gave, in float64.
    truth
        What the oracle gives.
    tau
        The bound of each side.
    """

    what: str
    apart: Array | None
    error: dict[Name, Array | None]
    given: dict[Name, Array | None]
    truth: Array
    tau: dict[Name, Array]

    def worst(self, side: Name) -> float:
        """Give the largest error of a side in units of its bound."""
        error = self.error[side]
        return 0.0 if error is None or not error.size else float(error.max())

    @property
    def worst_apart(self) -> float:
        """The largest distance of the two in units of both bounds."""
        return 0.0 if self.apart is None or not self.apart.size else float(self.apart.max())


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What came of one request.

    Attributes
    ----------
    case
        The request.
    complaints
        For each side what is wrong with it, in words; a side without an entry is within its bounds.
    parts
        The arrays that could be compared.
    skipped
        Why there was nothing to compare, if a side refused: ``"B refuses window"``.
    """

    case: Case
    complaints: dict[Name, str]
    parts: tuple[Part, ...]
    skipped: str = ""

    @property
    def blamed(self) -> str:
        """``"A"``, ``"B"``, ``"A and B"``, or nothing."""
        return " and ".join(sorted(self.complaints))


def judge(case: Case, given: dict[Name, Given], numerics: Mapping[Name, Arithmetic]) -> Judgement:
    """Judge two answers to a request."""
    complaints = {side: f"{a.how}: {a.message}" for side, a in given.items() if isinstance(a, Failed)}
    refusals = [f"{side} refuses {', '.join(a.codes)}" for side, a in given.items() if isinstance(a, Refused)]
    answers = {side: a for side, a in given.items() if isinstance(a, Answer)}
    for side, answer in list(answers.items()):
        wrong = misshapen(case, answer)
        if wrong:
            complaints[side] = wrong
            del answers[side]
    bounds: dict[Name, Tolerance] = {}
    for side in list(answers):
        try:
            bounds[side] = case.tolerance(numerics[side])
        except ak.UnsupportedError as error:  # of numerics of its own
            refusals.append(f"{side} cannot be judged: {reason_of(error)}")
            del answers[side]
    parts = tuple(_parts(case, answers, bounds)) if answers else ()
    for side in answers:
        beyond = [part for part in parts if part.worst(side) > 1]
        if beyond:
            complaints[side] = "; ".join(_told(part, side) for part in beyond)
    return Judgement(case, complaints, parts, "; ".join(refusals))


def misshapen(case: Case, answer: Answer) -> str:
    """Say what is wrong with the shapes and element types of an answer; nothing where nothing is."""
    wanted: list[tuple[str, Array, tuple[int, ...], str]] = [("output", answer.output, case.output_shape, case.dtype)]
    if answer.lse is not None:
        wanted.append(("lse", answer.lse, case.output_shape[:3], lse_dtype(case.dtype)))
    for what, array, shape, dtype in wanted:
        if array.shape != shape:
            return f"{what} must be {list(shape)}, got {list(array.shape)}"
        if array.dtype.name != dtype:
            return f"{what} must be {dtype}, got {array.dtype.name}"
    return ""


def error_of(actual: Array, expected: Array, tau: Array) -> Array:
    """Give ``|actual - expected| / tau``: 0 where they are equal, infinite where they differ in kind or tau is 0."""
    actual, expected = np.broadcast_arrays(np.asarray(actual, np.float64), np.asarray(expected, np.float64))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(all="ignore"):
        ratio = np.abs(actual - expected) / tau
    comparable = np.isfinite(actual) & np.isfinite(expected) & (tau > 0)
    return np.where(same, 0.0, np.where(comparable, ratio, np.inf))


def _parts(case: Case, answers: dict[Name, Answer], bounds: dict[Name, Tolerance]) -> list[Part]:
    found = []
    for what, truth in (("output", case.truth.output), ("lse", case.truth.lse)):
        given = {side: _wide(getattr(answers[side], what, None)) if side in answers else None for side in NAMES}
        tau = {side: getattr(bounds[side], what) for side in answers}
        if any(array is not None for array in given.values()):
            found.append(_part(what, given, truth, tau))
    return found


def _part(what: str, given: dict[Name, Array | None], truth: Array, tau: dict[Name, Array]) -> Part:
    a, b = (given[side] for side in NAMES)
    apart = error_of(a, b, tau["A"] + tau["B"]) if a is not None and b is not None else None
    error = {side: None if array is None else error_of(array, truth, tau[side]) for side, array in given.items()}
    return Part(what, apart, error, given, truth, tau)


def _told(part: Part, side: Name) -> str:
    """Say where an array is wrong."""
    error, given = part.error[side], part.given[side]
    assert error is not None  # it has an error because it was given
    assert given is not None
    at = np.unravel_index(int(error.argmax()), error.shape)
    return (
        f"{part.what}: {int((error > 1).sum())} of {error.size} elements beyond tau, worst at "
        f"[{', '.join(map(str, map(int, at)))}]: {given[at]:.9g} where the oracle gives {part.truth[at]:.9g}, "
        f"{error[at]:.3g} tau"
    )


def _wide(array: Array | None) -> Array | None:
    return None if array is None else np.asarray(array, np.float64)
