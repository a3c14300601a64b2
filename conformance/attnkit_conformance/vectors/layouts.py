"""What a wrong file would be if it were read in another way: other byte order, other axes, another element type.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from math import prod
from typing import Any, Final, NamedTuple

import ml_dtypes  # noqa: F401  # makes numpy.dtype("bfloat16") known
import numpy as np

Array = np.ndarray[Any, Any]
_DTYPES: Final = ("float32", "float64", "bfloat16", "float16")
_AXES: Final = "BHTE"


class Reading(NamedTuple):
    """One way to read a file: what is different about it, in words, and the array that it then is."""

    words: str
    array: Array


def diagnose(content: bytes, dtype: str, shape: tuple[int, ...], verifies: Callable[[Array], bool]) -> str:
    """Say as what else the bytes of a wrong file are right; empty where no way of reading them makes them so.

    Parameters
    ----------
    content
        The bytes.
    dtype, shape
        What they must be.
    verifies
        Whether an array is right.
    """
    for reading in _readings(content, dtype, shape):
        if verifies(reading.array):
            return reading.words
    return ""


def _readings(content: bytes, dtype: str, shape: tuple[int, ...]) -> Iterator[Reading]:
    """Give every way but the right one, what is different in one thing only first."""
    ways = [
        (typed, swapped, order)
        for typed in (dtype, *(other for other in _DTYPES if other != dtype))
        for swapped in (False, True)
        for order in permutations(range(len(shape)))
        if len(content) == prod(shape) * np.dtype(typed).itemsize
    ]
    usual = tuple(range(len(shape)))
    ways.sort(key=lambda way: (way[0] != dtype) + way[1] + (way[2] != usual))
    for typed, swapped, order in ways[1 if ways and ways[0] == (dtype, False, usual) else 0 :]:
        words = ", ".join(filter(None, (_type_words(typed, dtype), _swap_words(swapped), _order_words(order, usual))))
        yield Reading(words, _read(content, typed, swapped, [shape[axis] for axis in order], order))


def _read(content: bytes, dtype: str, swapped: bool, stored: list[int], order: tuple[int, ...]) -> Array:
    width = np.dtype(dtype).itemsize
    bits = np.frombuffer(content, f"{'>' if swapped else '<'}u{width}").astype(f"=u{width}")
    return bits.view(np.dtype(dtype)).reshape(stored).transpose(np.argsort(order))


def _type_words(typed: str, dtype: str) -> str:
    return "" if typed == dtype else f"the elements are {typed} instead of {dtype}"


def _swap_words(swapped: bool) -> str:
    return "the byte order is big-endian instead of little-endian" if swapped else ""


def _order_words(order: tuple[int, ...], usual: tuple[int, ...]) -> str:
    if order == usual:
        return ""
    stored, wanted = ("".join(_AXES[axis] for axis in axes) for axes in (order, usual))
    return f"the layout is transposed: {stored} instead of {wanted}"
