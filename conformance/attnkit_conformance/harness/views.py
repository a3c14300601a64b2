"""Ways to lay an array out in memory that all mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import array_api_compat
import numpy as np

Array = Any
NumpyArray = np.ndarray[Any, Any]
Maker = Callable[[NumpyArray], Array]
View = Callable[[Maker, NumpyArray], Array]


def _transposed(make: Maker, array: NumpyArray) -> Array:
    """Tokens before heads, as projections give them."""
    return make(np.ascontiguousarray(array.swapaxes(1, 2))).swapaxes(1, 2)


def _column_major(make: Maker, array: NumpyArray) -> Array:
    """Features before tokens."""
    return make(np.ascontiguousarray(array.swapaxes(2, 3))).swapaxes(2, 3)


def _sliced(make: Maker, array: NumpyArray) -> Array:
    """Every other token, and the middle of the features, of a larger array that holds NaN elsewhere."""
    wide = np.full((*array.shape[:2], 2 * array.shape[2], array.shape[3] + 3), np.nan, array.dtype)
    wide[:, :, ::2, 1:-2] = array
    return make(wide)[:, :, ::2, 1:-2]


def _reversed(make: Maker, array: NumpyArray) -> Array:
    """Tokens from the last to the first: a negative stride, where the library has such."""
    flipped = make(np.ascontiguousarray(array[:, :, ::-1]))
    return array_api_compat.array_namespace(flipped).flip(flipped, axis=2)


def _read_only(make: Maker, array: NumpyArray) -> Array:
    """Nothing may be written, where the library can say so."""
    copy = make(array)
    if isinstance(copy, np.ndarray):
        copy.flags.writeable = False
    return copy


VIEWS: Final[dict[str, View]] = {
    "transposed": _transposed,
    "column-major": _column_major,
    "sliced": _sliced,
    "reversed": _reversed,
    "read-only": _read_only,
}
