"""The numbers of golden vectors: a counter-based generator of integers, and dyadic rationals made of them.

Every number depends on a name and its own index alone, and all arithmetic is on unsigned 64-bit integers that wrap, so
that the same inputs come out on any machine, in any language and in any order. In pseudo-code::

    mix(z):            z ^= z >> 30; z *= 0xBF58476D1CE4E5B9
                       z ^= z >> 27; z *= 0x94D049BB133111EB; return z ^ (z >> 31)
    hash(text):        h = 0xCBF29CE484222325; for each byte c of text: h = (h ^ c) * 0x100000001B3; return h
    word(name, index): return mix(hash(name) + (index + 1) * 0x9E3779B97F4A7C15)

``mix`` is that of SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014),
``hash`` is FNV-1a. The name is ``"CASE/ROLE"``, the index that of the element in row-major order.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]
Shape = tuple[int, ...]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def words(name: str, shape: Shape) -> Words:
    """Give the word of every element of an array: 64 random bits each."""
    counter = np.arange(1, prod(shape) + 1, dtype=np.uint64)
    return _mixed(np.uint64(_hash(name)) + counter * _GAMMA).reshape(shape)


def bell(name: str, shape: Shape) -> FloatArray:
    """Give ``(a + b + c + d - 30) / 8`` of the four lowest hexadecimal digits of each word.

    That is bell-shaped, with a mean of 0 and a deviation of 1.15; every number is a multiple of 1/8 of at most 3.75,
    which every element type holds.
    """
    bits = words(name, shape)
    digits = [((bits >> np.uint64(4 * n)) & np.uint64(15)).astype(np.int64) for n in range(4)]
    return np.asarray((sum(digits) - 30) / 8.0)


def choice(name: str, shape: Shape, count: int) -> npt.NDArray[np.int64]:
    """Give integers from 0 to ``count - 1``: the upper 32 bits of each word modulo ``count``."""
    return ((words(name, shape) >> np.uint64(32)) % np.uint64(count)).astype(np.int64)


def _mixed(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    mixed: Words = z ^ (z >> np.uint64(31))
    return mixed


def _hash(text: str) -> int:
    found = 0xCBF29CE484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001B3 & (2**64 - 1)
    return found


def arrays(name: str, draw: str, query: Shape, key: Shape, value: Shape) -> tuple[Any, Any, Any]:
    """Give query, key and value of a case: multiples of a power of two with at most 8 significant bits.

    ``"plain"``: all of them as ``bell`` gives them. ``"peaked"``: the query times 4. ``"huge"``: query and key times
    32, so that scores lie far beyond what ``exp`` can take. ``"cancelling"``: the query divided by 16, and values of
    alternating sign that nearly cancel. ``"ascending"``: scores that rise along the keys, so that the running maximum
    moves with every key.
    """
    q, k, v = (bell(f"{name}/{role}", shape) for role, shape in (("query", query), ("key", key), ("value", value)))
    sign = (1 - 2 * (np.arange(key[2]) % 2))[:, None]
    if draw == "peaked":
        return 4 * q, k, v
    if draw == "huge":
        return 32 * q, 32 * k, v
    if draw == "cancelling":
        return q / 16, k, sign * (4 + choice(f"{name}/value", value, 4) / 16)
    if draw == "ascending":
        even = np.arange(query[3]) % 2 == 0
        step = max(1, key[2] // 64)
        ramp = (np.arange(key[2]) // step)[:, None] / 8
        return (
            np.where(even, 2, q / 16),
            np.where(even, ramp, k / 16),
            sign * (1 + choice(f"{name}/value", value, 16) / 16),
        )
    return q, k, v
