"""Merge partial results over disjoint sets of keys into the result over all of them.

With parts ``(o_i, L_i)`` and ``M = max L_i``: ``o = sum exp(L_i - M) o_i / sum exp(L_i - M)``,
``L = M + log sum exp(L_i - M)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnkit.arrays import DTYPES, dtype_name, namespace
from attnkit.checks import check_array, check_home
from attnkit.errors import DTypeError, ShapeError

Array = Any


def merge(*parts: tuple[Array, Array]) -> tuple[Array, Array]:
    """Merge attention over disjoint sets of keys.

    Parameters
    ----------
    parts
        ``(output [..., T, E], lse [..., T])`` each, as ``attention_with_lse`` gives them; give sinks to one part only.

    Returns
    -------
    output, lse
        The same shapes and dtypes. The order of the parts does not matter, and a part without keys (0, -inf) changes
        nothing, bit for bit; any grouping agrees within rounding.

    Raises
    ------
    ShapeError
        If there is no part, or shapes differ.
    DTypeError
        If a part is not a pair of arrays, or element types differ.
    """
    _check(parts)
    with np.errstate(all="ignore"):  # weights that underflow, and infinities, are what they are
        return _merged(parts)


def _merged(parts: tuple[tuple[Array, Array], ...]) -> tuple[Array, Array]:
    outputs, lses = [part[0] for part in parts], [part[1] for part in parts]
    xp = namespace(outputs[0], lses[0])
    lse = xp.stack(lses)
    top = xp.max(lse, axis=0)
    base = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    weights = xp.where(lse == -xp.inf, xp.zeros_like(lse), xp.exp(lse - base))
    share = weights[..., None]
    values = xp.astype(xp.stack(outputs), lse.dtype)
    terms = share * xp.where(share == 0, xp.full_like(values, -0.0), values)  # -0.0 is what changes no bit of a sum
    total = _ordered_sum(weights, xp)
    empty = total == 0
    safe = xp.where(empty, xp.ones_like(total), total)
    output = xp.where(empty[..., None], xp.zeros_like(values[0]), _ordered_sum(terms, xp) / safe[..., None])
    return xp.astype(output, outputs[0].dtype), xp.where(empty, top, base + xp.log(safe))


def _ordered_sum(terms: Array, xp: Any) -> Array:
    """Sum over axis 0 in order of size, so that the order of the parts leaves no trace in the bits."""
    ordered = xp.sort(terms, axis=0)
    total = ordered[0]
    for index in range(1, ordered.shape[0]):
        total = total + ordered[index]
    return total


def _check(parts: tuple[tuple[Array, Array], ...]) -> None:
    if not parts:
        raise ShapeError("merge needs at least one (output, lse) part, got none")
    for number, part in enumerate(parts):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise DTypeError(f"merge: part {number} must be a pair (output, lse) of arrays, got {type(part).__name__}")
        for name, array in zip(("output", "lse"), part, strict=True):
            check_array(f"merge: {name} of part {number}", array)
            check_home(f"merge: {name} of part {number}", array, parts[0][0], "the first output")
        _check_shapes(number, part, parts[0])
        _check_dtypes(number, part, parts[0])


def _check_shapes(number: int, part: tuple[Array, Array], first: tuple[Array, Array]) -> None:
    expected = tuple(first[0].shape)
    shapes = tuple(part[0].shape), tuple(part[1].shape)
    if len(expected) < 2 or shapes != (expected, expected[:-1]):
        raise ShapeError(
            f"merge: part {number} must be output [..., T, E] = {list(expected)} with lse [..., T] = "
            f"{list(expected[:-1])}, got {list(shapes[0])} with {list(shapes[1])}"
        )


def _check_dtypes(number: int, part: tuple[Array, Array], first: tuple[Array, Array]) -> None:
    output, lse = part[0].dtype, part[1].dtype
    if output != first[0].dtype or lse != first[1].dtype:
        raise DTypeError(
            f"merge: part {number} must be {first[0].dtype} with lse {first[1].dtype}, got {output} with {lse}"
        )
    if dtype_name(output) not in DTYPES:
        raise DTypeError(f"merge: output must be one of {', '.join(DTYPES)}, got {output}")
    if dtype_name(lse) not in ("float32", "float64"):
        raise DTypeError(f"merge: lse must be float32 or float64, got {lse}")
