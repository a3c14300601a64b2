"""The terms of a mask: tuples of a kind's name and its arguments, checked and brought into canonical order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from attnkit.arrays import is_array
from attnkit.errors import DTypeError, ShapeError
from attnkit.structure import FARTHEST, MaskStructure

Array = Any
Term = tuple[Any, ...]
KINDS = ("causal", "window", "prefix", "chunked", "documents", "dense")


def check_term(term: object) -> Term:
    """Give a term with its arguments checked and its arrays frozen.

    Raises
    ------
    ShapeError, DTypeError
        If it is no term, or an argument does not fit.
    """
    match term:
        case ("causal",):
            return ("causal",)
        case ("window", left, right):
            return ("window", check_size("left", left, 1, True), check_size("right", right, 0, True))
        case ("prefix", n):
            return ("prefix", check_size("n", n, 0))
        case ("chunked", n):
            return ("chunked", check_size("n", n, 1))
        case ("documents", ids_q, ids_k):
            return ("documents", check_ids("ids_q", ids_q), check_ids("ids_k", ids_k))
        case ("dense", array):
            return ("dense", check_boolean(array))
    raise ShapeError(f"mask: a term is a tuple of one of {', '.join(KINDS)} and its arguments, got {term!r}")


def canonical(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Sort terms by kind, merge windows and prefixes into their intersection, drop repetitions."""
    kinds: dict[str, list[Term]] = {kind: [] for kind in KINDS}
    for term in terms:
        if not any(len(term) == len(seen) and all(map(_repeats, term, seen)) for seen in kinds[term[0]]):
            kinds[term[0]].append(term)
    if kinds["causal"] and kinds["prefix"]:
        raise ShapeError(
            "mask: prefix(n) already contains causal, and joining both would hide the prefix again; "
            "use prefix(n) alone, or causal() alone"
        )
    if kinds["window"]:
        kinds["window"] = [("window", _least(t[1] for t in kinds["window"]), _least(t[2] for t in kinds["window"]))]
    if kinds["prefix"]:
        kinds["prefix"] = [min(kinds["prefix"])]
    kinds["chunked"].sort()
    return tuple(term for kind in KINDS for term in kinds[kind])


def structure_of(terms: tuple[Term, ...]) -> MaskStructure:
    """Give the hashable part of a mask with these terms, which are canonical."""
    arguments = {term[0]: term[1:] for term in terms}
    left, right = arguments.get("window", (None, None))
    return MaskStructure(
        causal="causal" in arguments,
        left=left,
        right=right,
        prefix=arguments.get("prefix", (None,))[0],
        chunks=tuple(term[1] for term in terms if term[0] == "chunked"),
        documents=sum(term[0] == "documents" for term in terms),
        dense=sum(term[0] == "dense" for term in terms),
    )


def check_size(name: str, value: Any, least: int, optional: bool = False) -> int | None:
    """Give an integer argument of a kind, or raise ``ShapeError`` naming it."""
    if optional and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        kind = "an integer or None" if optional else "an integer"
        raise ShapeError(f"mask: {name} must be {kind}, got {value!r}")
    if value < least:
        alternative = " or None for unlimited" if optional else ""
        raise ShapeError(f"mask: {name} must be >= {least}{alternative}, got {int(value)}")
    if value > FARTHEST:
        raise ShapeError(f"mask: {name} must be <= 2**53, got {int(value)}")
    return int(value)


def check_ids(name: str, ids: Any) -> Array:
    """Give document ids ``[length]`` or ``[B, length]``, frozen, or raise an error naming them."""
    array = _frozen(name, ids)
    if isinstance(array, np.ndarray) and array.size == 0:
        array = _frozen(name, array.astype(np.int64))
    if array.ndim not in (1, 2):
        raise ShapeError(f"mask: {name} must be [length] or [B, length], got shape {tuple(array.shape)}")
    if "int" not in str(array.dtype):
        raise DTypeError(f"mask: {name} must hold integers, got {array.dtype}")
    return array


def check_boolean(array: Any) -> Array:
    """Give a dense mask, frozen, or raise an error."""
    array = _frozen("dense", array)
    if str(array.dtype).rpartition(".")[2] != "bool":
        raise DTypeError(
            f"mask: dense needs booleans with True = keep, got {array.dtype}; "
            "compare an integer mask (array != 0), or pass additive floats as bias="
        )
    if not 2 <= array.ndim <= 4:
        raise ShapeError(f"mask: dense must broadcast to [B, H, T, S] from 2 to 4 axes, got shape {tuple(array.shape)}")
    return array


def same_argument(a: Any, b: Any) -> bool:
    """Compare two arguments of terms; arrays are equal in shape and in every element."""
    if hasattr(a, "shape") or hasattr(b, "shape"):
        return a is b or (getattr(a, "shape", None) == getattr(b, "shape", None) and bool((a == b).all()))
    return bool(a == b)


def _repeats(a: Any, b: Any) -> bool:
    """Tell whether an argument is there already; only the host's arrays are read for that, no device waits."""
    if any(is_array(argument) and not isinstance(argument, np.ndarray) for argument in (a, b)):
        return a is b
    return same_argument(a, b)


def _least(sizes: Iterable[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]  # a list: torch.compile cannot trace min() of a generator
    return min(known) if known else None


def _frozen(name: str, array: Any) -> Array:
    """Copy a NumPy array into a read-only one; arrays of other libraries stay where they are."""
    if is_array(array) and not isinstance(array, np.ndarray):
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise DTypeError(f"mask: {name} must be a plain array, got a masked array; join a Mask.dense(...) of its mask")
    try:
        array = np.array(array)
    except ValueError as error:
        raise ShapeError(f"mask: {name} must be an array or nested lists of equal lengths: {error}") from error
    array.flags.writeable = False
    return array
