"""Position embeddings, on any array library: rotary (RoPE) and the slopes of ALiBi.

Sources: Su et al., RoFormer (2021); Press et al., Train Short, Test Long (2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnkit.arrays import namespace
from attnkit.config import RopeConfig
from attnkit.errors import DTypeError, ShapeError

Array = Any


def rope_tables(rope: RopeConfig, head_dim: int, positions: Array, like: Array) -> tuple[Array, Array]:
    """Give ``cos`` and ``sin`` of the angles ``position * theta ** (-2 i / dim)``.

    Parameters
    ----------
    rope
        Base and rotated features.
    head_dim
        ``D``.
    positions
        Integers ``[T]`` or ``[B, T]``.
    like
        An array whose library, device and dtype the tables take.

    Returns
    -------
    cos, sin
        ``[T, dim / 2]``, or ``[B, 1, T, dim / 2]``; computed in float64.
    """
    dim = rope.dim or head_dim
    xp = namespace(like)
    frequencies = rope.theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    angles = np.asarray(positions, np.float64)[..., None] * frequencies
    if angles.ndim == 3:
        angles = angles[:, None]
    place = {} if isinstance(like, np.ndarray) else {"device": like.device}
    cos, sin = (xp.asarray(table, **place) for table in (np.cos(angles), np.sin(angles)))
    return xp.astype(cos, like.dtype), xp.astype(sin, like.dtype)


def apply_rope(rope: RopeConfig, heads: Array, tables: tuple[Array, Array]) -> Array:
    """Rotate the leading features of every head by their positions.

    Parameters
    ----------
    rope
        How features are paired.
    heads
        ``[..., T, D]``.
    tables
        What ``rope_tables`` gave.

    Returns
    -------
    A new array like ``heads``.
    """
    xp = namespace(heads)
    cos, sin = tables
    dim = 2 * cos.shape[-1]
    turned, rest = heads[..., :dim], heads[..., dim:]
    if rope.style == "half":
        first, second = turned[..., : dim // 2], turned[..., dim // 2 :]
        turned = xp.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
        pairs = xp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
        turned = xp.reshape(pairs, (*heads.shape[:-1], dim))
    return xp.concat([turned, rest], axis=-1) if rest.shape[-1] else turned


def alibi_slopes(num_heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Give the published ALiBi slopes ``[H]``.

    For a power of two ``H`` they are ``2 ** (-8 (h + 1) / H)``; otherwise those of the next lower power of two,
    followed by every other one of the next higher.

    Raises
    ------
    DTypeError
        If ``num_heads`` is no integer.
    ShapeError
        If it is below 1.
    """
    if isinstance(num_heads, bool) or not isinstance(num_heads, int | np.integer):
        raise DTypeError(f"num_heads must be an integer, got {num_heads!r}")
    if num_heads < 1:
        raise ShapeError(f"num_heads must be >= 1, got {num_heads}")
    lower = 1 << (int(num_heads).bit_length() - 1)
    slopes = _geometric(lower)
    if lower < num_heads:
        slopes = np.concatenate([slopes, _geometric(2 * lower)[::2][: num_heads - lower]])
    return slopes.astype(np.float32)


def _geometric(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(2.0 ** (-8.0 * np.arange(1, count + 1) / count))
