"""Comparisons: within a bound element by element, or bit for bit. Each says where the worst element is.

Shapes and element types must be equal, NaN and infinity must stand in the same places, and comparing nothing is a
failure: none of these can hide behind a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnkit_conformance.locating import common, place
from attnkit_conformance.measuring import Comparison, Mismatch, held, note

FloatArray = npt.NDArray[np.float64]


def assert_like(array: npt.NDArray[Any], shape: tuple[int, ...], dtype: str, *, what: str) -> None:
    """Check shape and element type."""
    __tracebackhide__ = True
    if array.shape != shape:
        raise AssertionError(f"{what}: shape must be {list(shape)}, got {list(array.shape)}")
    if array.dtype.name != dtype:
        raise AssertionError(f"{what}: dtype must be {dtype}, got {array.dtype.name}")
    held(f"shape and element type of {what}")


def assert_within(
    actual: npt.NDArray[Any],
    expected: npt.ArrayLike,
    tau: npt.ArrayLike,
    *,
    what: str,
    term: Callable[[tuple[int, ...]], str] | None = None,
) -> None:
    """Check that no element is further from ``expected`` than its own ``tau``.

    Where one is, ``term`` names what ``tau`` is mostly made of at the worst.
    """
    __tracebackhide__ = True
    wide, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    tau = np.broadcast_to(np.asarray(tau, np.float64), expected.shape)
    _assert_comparable(wide, expected, what)
    _assert_same_classes(wide, expected, tau, what)
    finite = np.isfinite(expected)
    error = np.subtract(wide, expected, where=finite, out=np.zeros_like(expected))
    ratio = np.divide(error, tau, where=tau > 0, out=np.where(error != 0, np.copysign(np.inf, error), 0.0))
    size = np.abs(ratio)
    at = np.unravel_index(int(size.argmax()), size.shape)
    bad = size > 1
    because = term(tuple(map(int, at))) if term is not None and bad.any() else ""
    note(replace(_measured(what, ratio, at, expected, wide, tau), term=because))
    if bad.any():
        details = _joined(place(at), common(bad), because and f"tau is mostly {because}")
        raise Mismatch(
            f"{what}: {int(bad.sum())} of {ratio.size} elements lie outside their bound; worst at {_index(at)}: "
            f"expected {expected[at].item()!r}, got {wide[at].item()!r}, tau {tau[at]:.3g}, ratio {size[at]:.3g}"
            f"{details}",
            *(what, actual, expected, tau),
        )


def assert_equal(actual: npt.NDArray[Any], expected: npt.ArrayLike, *, what: str) -> None:
    """Check that every element is the same number, in every bit but the sign of zero; NaN equals NaN."""
    __tracebackhide__ = True
    expected = np.asarray(expected)
    if actual.dtype != expected.dtype:
        raise AssertionError(f"{what}: dtype must be {expected.dtype.name}, got {actual.dtype.name}")
    _assert_comparable(actual, expected, what)
    differs = ~((actual == expected) | ((actual != actual) & (expected != expected)))
    note(Comparison(what, actual.size, exact=True, ratio=np.inf if differs.any() else 0.0))
    if differs.any():
        at = tuple(np.argwhere(differs)[0])
        raise Mismatch(
            f"{what}: {int(differs.sum())} of {differs.size} elements differ where every bit must be the same; "
            f"first at {_index(at)}: expected {expected[at].item()!r}, got {actual[at].item()!r}"
            f"{_joined(common(differs))}",
            *(what, actual, expected),
        )


def assert_raises(kind: type[Exception], call: Callable[[], object]) -> None:
    """Check that a call raises an error of a class."""
    __tracebackhide__ = True
    try:
        call()
    except kind:
        held(f"raises {kind.__name__}")
        return
    raise AssertionError(f"the call must raise {kind.__name__}, it gave a result")


def _measured(
    what: str, ratio: FloatArray, at: tuple[Any, ...], expected: FloatArray, actual: FloatArray, tau: FloatArray
) -> Comparison:
    """Sum a comparison up; what is infinitely wrong would hide the rest of the statistics."""
    finite = np.where(np.abs(ratio) < 1e100, ratio, 0)  # whose squares can be summed
    return Comparison(
        what,
        ratio.size,
        exact=False,
        ratio=float(np.abs(ratio[at])),
        rms=float(np.sqrt(np.square(finite).mean())),
        bias=float((np.sign(np.where(np.isfinite(expected), expected, 0)) * finite).mean()),
        at=tuple(map(int, at)),
        expected=float(expected[at]),
        actual=float(actual[at]),
        tau=float(tau[at]),
    )


def _assert_comparable(actual: npt.NDArray[Any], expected: npt.NDArray[Any], what: str) -> None:
    __tracebackhide__ = True
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape must be {list(expected.shape)}, got {list(actual.shape)}")
    if not expected.size:
        raise AssertionError(f"{what}: nothing to compare, the arrays are {list(expected.shape)}")


def _assert_same_classes(actual: FloatArray, expected: FloatArray, tau: FloatArray, what: str) -> None:
    __tracebackhide__ = True
    for name, test in (("NaN", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        differs = test(actual) != test(expected)
        if differs.any():
            at = tuple(np.argwhere(differs)[0])
            raise Mismatch(
                f"{what}: {int(differs.sum())} of {differs.size} elements are {name} where they must not be, or the "
                f"reverse; first at {_index(at)}: expected {expected[at].item()!r}, got {actual[at].item()!r}"
                f"{_joined(common(differs))}",
                *(what, actual, expected, tau),
            )


def _index(at: tuple[Any, ...]) -> str:
    names = {4: "bhie", 3: "bhi"}.get(len(at), "")
    numbers = [f"{name}={int(n)}" for name, n in zip(names, at, strict=True)] if names else [str(int(n)) for n in at]
    return f"[{', '.join(numbers)}]"


def _joined(*details: str) -> str:
    return "".join(f"; {detail}" for detail in details if detail)
