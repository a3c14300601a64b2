"""Numerics profiles: how the arithmetic of an implementation rounds, as a short enumerated list.

A tolerance is derived from a profile (``attnkit.tolerance``), never from a measured failure. A backend declares the
profile that it follows, and is held to that one.

A *unit roundoff* ``u`` is the largest relative error of one rounding to nearest: ``2**-(t + 1)`` for ``t`` stored
mantissa bits, so ``2**-53`` in float64, ``2**-24`` in float32, ``2**-11`` in float16 and ``2**-8`` in bfloat16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from attnkit.errors import DTypeError

UNIT_ROUNDOFF: Final = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff of each element type."""

# float16 keeps its subnormals on every machine that matters, so the loss is half the smallest one. The formats with a
# wide exponent may be flushed to zero below the smallest normal, which is too small a number to hide a fault behind.
UNDERFLOW: Final = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""Largest absolute error of a number of each element type that underflows."""

Sums = Literal["independent", "sequential", "truncating"]
"""How the rounding errors of a sum relate to each other, see ``Numerics.growth``."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """How one implementation rounds: the constants that an error budget is made of.

    Parameters
    ----------
    name
        The profile, such as ``"fa-16"``.
    dtype
        Element type of the output.
    u_o
        Unit roundoff of the output.
    u_p
        Unit roundoff of the weights as they are multiplied with the values.
    u_s
        Unit roundoff of the scores as they are stored.
    u_q
        Unit roundoff of ``scale * query``, where that is stored before the product with the keys; 0 if it is not.
    u_a
        Unit roundoff of the accumulation.
    w_p
        Largest absolute error of a weight that underflows.
    w_o
        Largest absolute error of an output element that underflows.
    exp_ulps
        Relative error of one exponential, in units of ``u_a``.
    tanh_ulps
        Relative error of one soft-cap ``c * tanh(s / c)``, in units of ``u_a``: one each for the division, the
        product and the rounding of ``c``, the rest for ``tanh`` itself.
    lam
        How many standard deviations of a random walk of rounding errors are allowed. 4 is a bound that correct
        implementations do not reach; for 1 see ``at_random``.
    sums
        How sums are taken, which decides how their errors grow.
    """

    name: str
    dtype: str
    u_o: float
    u_p: float
    u_s: float
    u_q: float
    u_a: float
    w_p: float
    w_o: float
    exp_ulps: float = 4.0
    tanh_ulps: float = 8.0
    lam: float = 4.0
    sums: Sums = "independent"

    def growth(self, terms: float) -> float:
        """Give ``f(k)``: how many roundings of ``u_a`` a sum of ``terms`` addends may be off, relative to its size.

        ``"sequential"``: one addend after the other, rounded to nearest. Equal addends are rounded the same way again
        and again, so that only the worst case ``f(k) = k`` holds (Higham, *Accuracy and Stability of Numerical
        Algorithms*, 2nd ed., eq. 3.5). ``"truncating"``: rounded towards zero, as tensor cores do (Fasi et al.,
        *Numerical behavior of NVIDIA tensor cores*, PeerJ Comput. Sci. 7, 2021), where each addition may lose twice as
        much: ``f(k) = 2 k``. ``"independent"``: errors of either sign, as in blocked and pairwise sums, which make
        ``f(k) = lam * sqrt(k)`` (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, A2815), and never more than ``k``.
        """
        if self.sums == "independent":
            return min(self.lam * math.sqrt(terms), terms)
        return terms if self.sums == "sequential" else 2 * terms

    def with_sums(self, sums: Sums) -> Numerics:
        """Give the twin of this profile that takes sums in another way, such as ``"fa-16+truncating"``."""
        if sums == self.sums:
            return self
        base = self.name.removesuffix(f"+{self.sums}")
        return replace(self, name=base if sums == "independent" else f"{base}+{sums}", sums=sums)

    def at_random(self) -> Numerics:
        """Give the twin that holds for random numbers, within one standard deviation: a mark of quality.

        Random addends are rounded up as often as down in whatever order they are summed, unless they are cut off.
        """
        nearest = self if self.sums == "truncating" else self.with_sums("independent")
        return replace(nearest, lam=1.0)


def _profile(name: str, output: str, *, weights: str, accumulation: str) -> Numerics:
    return Numerics(
        name=name,
        dtype=output,
        u_o=UNIT_ROUNDOFF[output],
        u_p=UNIT_ROUNDOFF[weights],
        u_s=UNIT_ROUNDOFF[accumulation],
        u_q=0.0,
        u_a=UNIT_ROUNDOFF[accumulation],
        w_p=UNDERFLOW[weights],
        w_o=UNDERFLOW[output],
    )


FLOAT64: Final = _profile("float64", "float64", weights="float64", accumulation="float64")
"""Everything in float64."""

STRICT_FP32: Final = _profile("strict-fp32", "float32", weights="float32", accumulation="float32")
"""Everything in float32, operands too: no TF32."""

FP32P_FP16: Final = _profile("fp32P-16", "float16", weights="float32", accumulation="float32")
"""Float16 in and out, float32 between: what an implementation that widens its inputs does."""

FP32P_BF16: Final = _profile("fp32P-16", "bfloat16", weights="float32", accumulation="float32")
"""Bfloat16 in and out, float32 between."""

FA_FP16: Final = _profile("fa-16", "float16", weights="float16", accumulation="float32")
"""Float16 with the weights rounded to float16 for the tensor cores, as FlashAttention does; sums in float32."""

FA_BF16: Final = _profile("fa-16", "bfloat16", weights="bfloat16", accumulation="float32")
"""Bfloat16 with the weights rounded to bfloat16 for the tensor cores; sums in float32."""

PROFILES: Final = (FLOAT64, STRICT_FP32, FP32P_FP16, FP32P_BF16, FA_FP16, FA_BF16)


def numerics_for(name: str, dtype: npt.DTypeLike) -> Numerics:
    """Look up the profile ``name`` for outputs of type ``dtype``.

    Parameters
    ----------
    name
        ``"float64"``, ``"strict-fp32"``, ``"fp32P-16"`` or ``"fa-16"``; with ``"+sequential"`` or ``"+truncating"``
        appended, the twin that ``Numerics.with_sums`` gives.
    dtype
        Output element type, or its name.

    Raises
    ------
    ValueError
        If there is no profile of that name.
    DTypeError
        If the profile has no such output type.
    """
    output = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    twins = [profile.with_sums(sums) for profile in PROFILES for sums in get_args(Sums)]
    by_dtype = {profile.dtype: profile for profile in twins if profile.name == name}
    if not by_dtype:
        known = ", ".join(sorted({profile.name for profile in PROFILES}))
        ways = " or ".join(f"'+{sums}'" for sums in get_args(Sums)[1:])
        raise ValueError(f"numerics must be one of {known} (each also with {ways} appended), got {name!r}")
    if output not in by_dtype:
        raise DTypeError(f"numerics {name!r} is for outputs of type {' or '.join(by_dtype)}, got {output}")
    return by_dtype[output]
