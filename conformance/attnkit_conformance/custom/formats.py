"""Formats: the numbers that a stage of an implementation can hold, and how far off rounding to them may be.

All bounds are sums, products and powers of two, so that they come out the same on every machine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

Array = np.ndarray[Any, np.dtype[np.float64]]
_MODEL = ConfigDict(extra="forbid", frozen=True)


class Exact(BaseModel):
    """Any number: a stage that does not round, or whose rounding another stage tells."""

    model_config = _MODEL
    kind: Literal["exact"] = "exact"

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number."""
        return -np.inf, np.inf

    def half(self, numbers: Array) -> Array:
        """Bound the error of rounding each number to the nearest."""
        return np.zeros_like(numbers)

    def half_sum(self, total: Array, count: int) -> Array:
        """Bound the error of ``count`` roundings to the nearest in a sum whose addends have so large a total."""
        del count
        return np.zeros_like(total)


class Fixed(BaseModel):
    """Multiples of ``2**-fraction`` from ``-2**integer`` on, or from 0 where unsigned, to below ``2**integer``."""

    model_config = _MODEL
    kind: Literal["fixed"]
    integer: int = Field(ge=-64, le=64)
    fraction: int = Field(ge=-64, le=64)
    signed: bool = True

    @model_validator(mode="after")
    def _has_bits(self) -> Fixed:
        if self.integer + self.fraction < 1:
            raise ValueError(f"fixed: integer + fraction must be 1 or more, got {self.integer} + {self.fraction}")
        return self

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number."""
        top = 2.0**self.integer
        return (-top if self.signed else 0.0), top - 2.0**-self.fraction

    def half(self, numbers: Array) -> Array:
        """Bound the error of rounding each number to the nearest: half a step."""
        return np.full_like(numbers, 2.0 ** -(self.fraction + 1))

    def half_sum(self, total: Array, count: int) -> Array:
        """Bound the error of a sum: each addend is rounded, and their addition is exact."""
        return np.full_like(total, count * 2.0 ** -(self.fraction + 1))


class Floating(BaseModel):
    """Binary floating point, ``mantissa`` stored bits and ``exponent`` bits with IEEE 754's bias."""

    model_config = _MODEL
    kind: Literal["float"]
    mantissa: int = Field(ge=0, le=52)
    exponent: int = Field(ge=2, le=11)
    subnormals: bool = True

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number; the highest exponent is that of infinity and NaN."""
        top = float(np.ldexp(2 - 2.0**-self.mantissa, 2 ** (self.exponent - 1) - 1))
        return -top, top

    def half(self, numbers: Array) -> Array:
        """Bound the error of rounding each number to the nearest: half a unit in the last place, or what underflows."""
        return self._unit * np.abs(numbers) + self._lost

    def half_sum(self, total: Array, count: int) -> Array:
        """Bound the error of a sum, one addend after the other, where each is rounded as it comes.

        ``n u / (1 - n u)`` of the magnitudes, with ``n`` roundings that an addend goes through (Higham, *Accuracy and
        Stability of Numerical Algorithms*, 2nd ed., eq. 3.5).
        """
        growth = count * self._unit
        bound: Array = (growth / (1 - growth) if growth < 1 else np.inf) * total + count * self._lost
        return bound

    @property
    def _unit(self) -> float:
        return 2.0 ** -(self.mantissa + 1)

    @property
    def _lost(self) -> float:
        least = 2 - 2 ** (self.exponent - 1)
        return float(np.ldexp(1.0, least - self.mantissa - 1 if self.subnormals else least))


class Block(BaseModel):
    """Block floating point: integers of ``mantissa`` bits and a sign, and an exponent for every ``block`` of them.

    The exponent is the least with which the largest of the block is below 1, so that a step is ``2**-mantissa`` of the
    power of two above it; what would round up to 1 stays a step below. The bound takes the largest of a whole vector,
    which no block exceeds: blocks may lie anywhere in it.
    """

    model_config = _MODEL
    kind: Literal["block"]
    mantissa: int = Field(ge=1, le=52)
    block: int = Field(ge=1)
    exponent: int = Field(default=8, ge=2, le=11)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number."""
        top = float(np.ldexp(1 - 2.0**-self.mantissa, 2 ** (self.exponent - 1) - 1))
        return -top, top

    def half(self, numbers: Array) -> Array:
        """Bound the error of rounding each number of vectors ``[..., n]`` to the nearest: half a step."""
        magnitudes = np.abs(numbers)
        _, exponents = np.frexp(magnitudes.max(axis=-1, keepdims=True, initial=0.0))
        exponents = np.maximum(exponents, 1 - 2 ** (self.exponent - 1))
        step, top = np.ldexp(1.0, exponents - self.mantissa), np.ldexp(1.0, exponents)
        bound: Array = np.maximum(step / 2, magnitudes - (top - step))
        return bound

    def half_sum(self, total: Array, count: int) -> Array:
        """Refuse: a running sum is no block."""
        raise TypeError(f"{count} addends of {total} cannot be summed up in block floating point")


Format = Annotated[Exact | Fixed | Floating | Block, Field(discriminator="kind")]
