"""The layers of a Llama block besides attention and rotary embedding, on arrays of any library.

Axes: ``n`` hidden, ``F`` intermediate. ``xp`` is the array-API namespace of the arrays.
"""

from __future__ import annotations

from typing import Any

Array = Any


def project(x: Array, matrix: Array, xp: Any) -> Array:
    """Multiply ``[..., in]`` by ``[in, out]`` in the type of ``x``; NumPy gives float32 for bfloat16 by itself."""
    return as_type(x @ matrix, x.dtype, xp)


def rms_norm(x: Array, shares: Array, eps: float, xp: Any) -> Array:
    """Scale ``[..., n]`` to unit root mean square (https://arxiv.org/abs/1910.07467, eq. 4, without the gain).

    ``shares [n, 1]`` are all ``1 / n``: a product with them is a mean in one call, and the fastest there is.
    """
    return x / xp.sqrt((x * x) @ shares + eps)


def swiglu(half_gate: Array, up: Array, xp: Any) -> Array:
    """Give ``silu(gate) * up`` (https://arxiv.org/abs/2002.05202, eq. 6) from ``gate / 2`` and ``up``, ``[..., F]``."""
    half = widened(half_gate, xp)
    # gate * sigmoid(gate), without an exponential that can overflow
    return as_type((half + half * xp.tanh(half)) * up, up.dtype, xp)


def as_type(x: Array, dtype: Any, xp: Any) -> Array:
    """Convert an array, unless it is of that type already."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def widened(x: Array, xp: Any) -> Array:
    """Give half-precision arrays as float32, in which squares and exponentials do not overflow."""
    return xp.astype(x, xp.float32) if x.dtype.itemsize < 4 else x
