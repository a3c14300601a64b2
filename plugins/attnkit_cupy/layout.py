"""What kernels ask of the layout of an array: element type, strides in elements, alignment.

Nothing here launches anything, unless an array has to be copied.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attnkit_cupy.runtime import ptr

Array = Any


def element_type(array: Array) -> str:
    """Give the name of an array's element type: ``"bfloat16"``."""
    return _name(array.dtype)


@lru_cache(maxsize=64)
def _name(dtype: Any) -> str:
    return str(dtype)


def element_strides(array: Array) -> tuple[int, ...]:
    """Give the strides in elements; 0 along axes of one element, which broadcasts them."""
    size = array.dtype.itemsize
    return tuple(
        0 if length == 1 else stride // size for length, stride in zip(array.shape, array.strides, strict=True)
    )


def addressable(array: Array, xp: Any) -> Array:
    """Give an array whose elements lie at multiples of their size; copied where they do not."""
    size = array.dtype.itemsize
    whole = ptr(array) % size == 0 and all(stride % size == 0 for stride in array.strides)
    return array if whole else xp.ascontiguousarray(array)


def readable(array: Array, xp: Any) -> Array:
    """Give an addressable array whose last axis is contiguous; copied where it is not."""
    contiguous = array.shape[-1] <= 1 or array.strides[-1] == array.dtype.itemsize
    return addressable(array, xp) if contiguous else xp.ascontiguousarray(array)
