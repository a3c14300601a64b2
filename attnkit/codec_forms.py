"""The arithmetic of storage codecs: what int8, int4 and fp8 codes are made of, on arrays of any library.

Every step is one operation that IEEE 754 rounds in one way only, so that libraries agree bit for bit. Besides the array
API it takes ``clip`` and ``view`` of the arrays themselves.

Axes: ``...`` leading axes of any number; ``size`` features of a head, in ``blocks`` of ``block`` features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnkit.arrays import Array

FloatArray = npt.NDArray[np.float64]

SHRINK = 2.0**-20
"""By how much a scale shrinks whose largest level would overflow."""


@dataclass(frozen=True)
class Form:
    """One kind of scaled storage.

    Parameters
    ----------
    limit
        The largest level.
    dtype, packed
        Element type of the codes, and features in one element.
    numbers
        Numbers stored of a block: ``scale, mid``, or ``scale`` alone.
    measure
        Gives half the extent of blocks ``[..., block]`` and what else is stored of them, each ``[..., 1]``.
    codes, levels
        From quotients ``[..., size]`` to codes, and from codes to new float32 levels.
    half_step
        How far features ``[..., block]`` may be from the nearest level, in float64.
    """

    limit: float
    dtype: str
    packed: int
    numbers: int
    measure: Callable[[Any, Array], tuple[Array, ...]]
    codes: Callable[[Any, Array], Array]
    levels: Callable[[Any, Array, int], Array]
    half_step: Callable[[FloatArray, float], FloatArray]

    def encode(self, xp: Any, tokens: Array, blocks: int) -> tuple[Array, Array]:
        """Turn tokens ``[..., size]`` into codes and scales."""
        *lead, size = tokens.shape
        x = xp.reshape(xp.astype(tokens, xp.float32, copy=False), (*lead, blocks, size // blocks))
        half, *mid = self.measure(xp, x)
        numbers = xp.concat([self._scale(xp, half, *mid), *mid], axis=-1)
        numbers = xp.where(xp.isfinite(half), numbers, xp.full_like(half, xp.nan))
        scale = numbers[..., :1]
        quotient = (x - numbers[..., 1:] if mid else x) / scale
        quotient = xp.where(scale > 0, quotient, xp.zeros_like(scale))  # neither 0/0 nor NaN has a code
        codes = self.codes(xp, xp.reshape(quotient, (*lead, size)))
        return codes, xp.reshape(numbers, (*lead, blocks * self.numbers))

    def decode(self, xp: Any, codes: Array, scales: Array, blocks: int, size: int) -> Array:
        """Turn codes and scales into float32 tokens ``[..., size]``, which alias neither."""
        lead = tuple(codes.shape[:-1])
        numbers = xp.reshape(scales, (*lead, blocks, 1, self.numbers))
        values = xp.reshape(self.levels(xp, codes, size), (*lead, blocks, size // blocks))
        values *= numbers[..., 0]
        if self.numbers == 2:
            values += numbers[..., 1]
        return xp.reshape(values, (*lead, size))

    def _scale(self, xp: Any, half: Array, mid: Array | float = 0.0) -> Array:
        scale = half / xp.full_like(half, self.limit)  # an array: some libraries take the reciprocal of a number
        return xp.where(xp.isfinite(scale * self.limit + abs(mid)), scale, scale * (1 - SHRINK))


def _extent(xp: Any, x: Array) -> tuple[Array, Array]:
    """Give ``half`` and ``mid``.

    Nothing overflows here, nor does ``x - mid``: ``half + |mid|`` is at most the largest number, and where it comes
    near, with ``half`` and ``low`` of one size and opposite signs, ``low + half`` is exact.
    """
    low, high = xp.min(x, axis=-1, keepdims=True), xp.max(x, axis=-1, keepdims=True)
    half = abs(high / 2 - low / 2)  # abs: libraries differ in which of two zeros is the smaller
    return half, low + half


def _magnitude(xp: Any, x: Array) -> tuple[Array]:
    return (xp.max(abs(x), axis=-1, keepdims=True),)


def _int8_codes(xp: Any, quotient: Array) -> Array:
    return xp.astype(xp.round(quotient).clip(-127, 127), xp.int8)


def _int8_levels(xp: Any, codes: Array, size: int) -> Array:  # noqa: ARG001  # int4 alone asks for it
    return xp.astype(codes, xp.float32)


def _int4_codes(xp: Any, quotient: Array) -> Array:
    codes = xp.astype(xp.round(quotient + 7.5).clip(0, 15), xp.uint8)
    if codes.shape[-1] % 2:
        codes = xp.concat([codes, xp.zeros_like(codes[..., :1])], axis=-1)
    return codes[..., 0::2] + codes[..., 1::2] * 16


def _int4_levels(xp: Any, codes: Array, size: int) -> Array:
    lanes = xp.astype(xp.reshape(codes, (-1,)), xp.int16)
    lanes |= lanes << 4
    lanes &= 0x0F0F  # one code to a byte, the even feature first on little-endian hosts
    levels = xp.reshape(xp.astype(lanes.view(xp.uint8), xp.float32), (*codes.shape[:-1], 2 * codes.shape[-1]))
    levels -= 7.5
    return levels if size % 2 == 0 else levels[..., :size]


def _fp8_codes(xp: Any, quotient: Array) -> Array:
    """Drop 20 of the 23 bits of mantissa, ties to even; below ``2**-6``, codes count multiples of ``2**-9``."""
    x = quotient.clip(-448.0, 448.0)
    size, bits = abs(x), x.view(xp.int32)
    sign, bits = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    subnormal = xp.astype(xp.round(size * 512.0), xp.int32)
    return xp.astype(xp.where(size < 2.0**-6, subnormal, normal) | sign, xp.uint8)


def _fp8_levels(xp: Any, codes: Array, size: int) -> Array:  # noqa: ARG001  # int4 alone asks for it
    bits = xp.astype(codes.view(xp.int8), xp.int32)  # the sign in all high bits, then seven of exponent and mantissa
    bits <<= 20
    bits &= ~0x78000000
    levels = bits.view(xp.float32)
    levels *= 2.0**120  # the exponent of float32 is biased by 127, that of e4m3fn by 7
    return levels


def _even_half_step(x: FloatArray, limit: float) -> FloatArray:
    extent: FloatArray = x.max(axis=-1, keepdims=True) - x.min(axis=-1, keepdims=True)
    return extent / 2 / limit / 2


def _fp8_half_step(x: FloatArray, limit: float) -> FloatArray:
    size = np.abs(x)
    step: FloatArray = np.maximum(size / 17, size.max(axis=-1, keepdims=True) / limit * 2.0**-10)
    return step


FORMS = {
    "int8": Form(127.0, "int8", 1, 2, _extent, _int8_codes, _int8_levels, _even_half_step),
    "int4": Form(7.5, "uint8", 2, 2, _extent, _int4_codes, _int4_levels, _even_half_step),
    "fp8": Form(448.0, "uint8", 1, 1, _magnitude, _fp8_codes, _fp8_levels, _fp8_half_step),
}
