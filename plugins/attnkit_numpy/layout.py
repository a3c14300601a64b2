"""Arrays as BLAS takes them, and the element types between which they move."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


@lru_cache(maxsize=8)
def dtype_of(name: str) -> np.dtype[Any]:
    """Give the NumPy dtype of a name, bfloat16 too."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def plain(array: Array, dtype: np.dtype[Any]) -> Array:
    """Give an array ``[..., n, D]`` in ``dtype`` whose rows are contiguous and do not overlap; a copy where not so.

    Anything else would go through slow loops of NumPy, and could give other bits than its copy.
    """
    if array.dtype != dtype:
        return array.astype(dtype, order="C")
    row, item = array.strides[-2:]
    if item == array.itemsize and row >= item * array.shape[-1] and row % item == 0 and array.flags.aligned:
        return array
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")
