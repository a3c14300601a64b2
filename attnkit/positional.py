"""Position embeddings, on any array library: rotary (RoPE) and the slopes of ALiBi.

Sources: Su et al., RoFormer (2021); Press et al., Train Short, Test Long (2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnkit.arrays import dtype_name, namespace
from attnkit.config import RopeConfig
from attnkit.errors import DTypeError, ShapeError

Array = Any
FloatArray = np.ndarray[Any, np.dtype[np.float64]]


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
        ``[T, dim]``, or ``[B, 1, T, dim]``: for every feature the cosine and sine of its pair, the sine negative for
        the first of the pair; computed in float64.
    """
    dim = rope.dim or head_dim
    frequencies = rope.theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    angles = np.asarray(positions, np.float64)[..., None] * frequencies
    if angles.ndim == 3:
        angles = angles[:, None]
    sine = np.sin(angles)
    tables = (_paired(rope, np.cos(angles), np.cos(angles)), _paired(rope, -sine, sine))
    cos, sin = (_like(table, like) for table in tables)
    return cos, sin


def _like(table: FloatArray, array: Array) -> Array:
    """Give a table in the library and element type of an array, and where that is."""
    if isinstance(array, np.ndarray):
        return table.astype(array.dtype)
    xp = namespace(array)
    if dtype_name(array.dtype) != "float64":
        table = table.astype(np.float32)  # not every device knows float64
    return xp.astype(xp.asarray(table, device=array.device), array.dtype)


def _paired(rope: RopeConfig, first: FloatArray, second: FloatArray) -> FloatArray:
    """Lay out what belongs to the first and second features of the pairs, ``[..., dim / 2]`` each."""
    if rope.style == "half":
        return np.concatenate([first, second], axis=-1)
    return np.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)


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
    cos, sin = tables
    dim = cos.shape[-1]
    if dim == heads.shape[-1]:
        return heads * cos + _partners(rope, heads) * sin
    leading = heads[..., :dim]
    turned = leading * cos + _partners(rope, leading) * sin
    return namespace(heads).concat([turned, heads[..., dim:]], axis=-1)


def _partners(rope: RopeConfig, features: Array) -> Array:
    """Give for every feature the other one of its pair."""
    xp = namespace(features)
    if rope.style == "half":
        middle = features.shape[-1] // 2
        return xp.concat([features[..., middle:], features[..., :middle]], axis=-1)
    swapped = xp.stack([features[..., 1::2], features[..., 0::2]], axis=-1)
    return xp.reshape(swapped, features.shape)


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


def _geometric(count: int) -> FloatArray:
    return np.asarray(2.0 ** (-8.0 * np.arange(1, count + 1) / count))
