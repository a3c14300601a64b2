"""Ways to take the sums of a matrix product in float32: in blocks, in pairs, one after the other, or cut off.

Each is a function of ``[..., m, k]`` and ``[..., k, n]`` that gives ``[..., m, n]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Dot = Callable[[Array, Array], Array]


def blocked(left: Array, right: Array) -> Array:
    """Add the sums of blocks of 128, each of which is left to the BLAS library.

    A block is off by 128 roundings at most, whatever the library does, and so is their sum for 16 thousand products.
    """
    starts = range(0, max(left.shape[-1], 1), 128)
    parts = [left[..., start : start + 128] @ right[..., start : start + 128, :] for start in starts]
    return sum(parts[1:], parts[0])


def pairwise(left: Array, right: Array) -> Array:
    """Add the first half of the products to the second, and so on."""
    products = left[..., :, :, None] * right[..., None, :, :]
    while (count := products.shape[-2]) > 1:
        half = count // 2
        added = products[..., :half, :] + products[..., half : 2 * half, :]
        products = np.concatenate([added, products[..., 2 * half :, :]], axis=-2)
    return products.sum(axis=-2)


def sequential(left: Array, right: Array) -> Array:
    """Add one product after the other, each rounded."""
    return _one_by_one(left, right, lambda total, one, other: total + one * other)


def fused(left: Array, right: Array) -> Array:
    """Add one product after the other, rounding once (FMA)."""
    return _one_by_one(left, right, lambda total, one, other: _wide_step(total, one, other).astype(total.dtype))


def truncating(left: Array, right: Array) -> Array:
    """Add one exact product after the other and round towards zero, as tensor cores do."""
    return _one_by_one(left, right, lambda total, one, other: _cut(_wide_step(total, one, other), total.dtype))


def _one_by_one(left: Array, right: Array, step: Callable[[Array, Array, Array], Array]) -> Array:
    total = np.zeros((left[..., :1] * right[..., :1, :]).shape, left.dtype)
    for k in range(left.shape[-1]):
        total = step(total, left[..., k : k + 1], right[..., k : k + 1, :])
    return total


def _wide_step(total: Array, one: Array, other: Array) -> Array:
    """Add a product in the next wider type, in which that of two float32 numbers is exact."""
    wide = np.float64 if total.dtype == np.float32 else np.longdouble
    return total.astype(wide) + one.astype(wide) * other.astype(wide)


def _cut(wide: Array, dtype: Any) -> Array:
    """Convert to a narrower type and round towards zero."""
    nearest = wide.astype(dtype)
    return np.where(np.abs(nearest) > np.abs(wide), np.nextafter(nearest, np.zeros((), dtype)), nearest)
