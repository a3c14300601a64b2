"""The layers of a Llama block besides attention and rotary embedding, on arrays of any library.

Axes: ``n`` hidden, ``F`` intermediate. ``xp`` is the array-API namespace of the arrays.
"""

from __future__ import annotations

from typing import Any

Array = Any


def project(x: Array, matrix: Array, xp: Any) -> Array:
    """Multiply ``[..., in]`` by ``[in, out]`` in the type of ``x``; NumPy gives float32 for bfloat16 by itself."""
    return _as_type(x @ matrix, x.dtype, xp)


def rms_norm(x: Array, weight: Array, eps: float, xp: Any) -> Array:
    """Scale ``[..., n]`` to unit root mean square, then by ``weight [n]`` (https://arxiv.org/abs/1910.07467, eq. 4)."""
    wide = _widened(x, xp)
    mean_square = xp.vecdot(wide, wide)[..., None] / x.shape[-1]
    return _as_type(wide / xp.sqrt(mean_square + eps), x.dtype, xp) * weight


def swiglu(gate: Array, up: Array, xp: Any) -> Array:
    """Give ``silu(gate) * up`` (https://arxiv.org/abs/2002.05202, eq. 6), both ``[..., F]``."""
    half = 0.5 * _widened(gate, xp)
    silu = half + half * xp.tanh(half)  # gate * sigmoid(gate), without an exponential that can overflow
    return _as_type(silu, gate.dtype, xp) * up


def _as_type(x: Array, dtype: Any, xp: Any) -> Array:
    return x if x.dtype == dtype else xp.astype(x, dtype)


def _widened(x: Array, xp: Any) -> Array:
    """Give half-precision arrays as float32, in which squares and exponentials do not overflow."""
    return xp.astype(x, xp.float32) if x.dtype.itemsize < 4 else x
