"""Stages: what is done at one place of an implementation: a function that is approximated, a format, a rounding."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

import attnkit as ak
from attnkit_conformance.custom.formats import Exact, Format

Array = np.ndarray[Any, np.dtype[np.float64]]
Rounding = Literal["nearest", "truncate", "floor", "ceil", "stochastic"]
CODE = "numerics"
"""The code of the reason why a result cannot be judged under numerics of one's own."""


class Stage(BaseModel):
    """One place of an implementation.

    Attributes
    ----------
    format
        The numbers that it holds.
    rounding
        To the nearest, of halves either; all others may be off by a whole step.
    overflow
        What becomes of a number beyond the format: the nearest end of it, or anything.
    relative, absolute
        How far the function that is computed here may be from the true one before it is rounded, such as a table for
        ``exp``: ``relative |x| + absolute``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Format = Exact()
    rounding: Rounding = "nearest"
    overflow: Literal["saturate", "wrap"] = "saturate"
    relative: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    absolute: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def rounded(self, numbers: Array) -> Array:
        """Bound the error of rounding numbers, ``[..., n]`` in vectors."""
        return self._steps * self.format.half(numbers)

    def error(self, name: str, numbers: Array, before: Array | float = 0.0) -> Array:
        """Bound what this stage adds to the error of numbers, ``[..., n]`` in vectors, that came with an error before.

        Raises
        ------
        UnsupportedError
            If one may lie beyond the format, and then become anything.
        """
        reach = np.abs(numbers) + before
        own = self.relative * reach + self.absolute
        own = own + self.rounded(reach + own)
        low, high = self.format.range
        beyond = np.maximum(0.0, np.maximum(numbers - high, low - numbers))
        if self.overflow == "wrap":
            leaves = (numbers + before + own > high) | (numbers - before - own < low)
            if leaves.any():
                raise out_of_range(name, float(numbers[leaves].flat[0]), self)
        bound: Array = own + beyond
        return bound

    def sum_error(self, total: Array, count: int) -> Array:
        """Bound the error of sums of ``count`` addends whose magnitudes add up to ``total``."""
        bound: Array = self.relative * total + count * self.absolute + self._steps * self.format.half_sum(total, count)
        return bound

    def check_sums(self, name: str, sums: Array, total: Array, error: Array) -> None:
        """Refuse sums that may leave the format on their way, or, where what wraps comes back, at its end.

        Raises
        ------
        UnsupportedError
            If one may.
        """
        low, high = self.format.range
        reach = (np.abs(sums) if self.overflow == "wrap" else total) + error
        if (reach > min(high, -low if low < 0 else high)).any() or (low == 0 and (sums < 0).any()):
            raise out_of_range(name, float(reach.max()), self)

    @property
    def _steps(self) -> float:
        return 1.0 if self.rounding == "nearest" else 2.0


def out_of_range(name: str, number: float, stage: Stage) -> ak.UnsupportedError:
    """Give the error of a call that takes a stage beyond its format."""
    low, high = stage.format.range
    reason = ak.Reason(CODE, name, f"in {low:g} .. {high:g}", f"{number:.4g}", "scale the inputs, or widen the format")
    return ak.UnsupportedError("the call cannot be judged by these numerics:", {"numerics": (reason,)})
