"""Ways to lay an array out in memory that all mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import array_api_compat
import numpy as np

from attnkit_conformance.subject import Subject

NumpyArray = np.ndarray[Any, Any]
View = Callable[[Subject, NumpyArray], Any]


def _transposed(backend: Subject, array: NumpyArray) -> Any:
    """Tokens before heads, as projections give them."""
    return backend.array(np.ascontiguousarray(array.swapaxes(1, 2))).swapaxes(1, 2)


def _column_major(backend: Subject, array: NumpyArray) -> Any:
    """Features before tokens."""
    return backend.array(np.ascontiguousarray(array.swapaxes(2, 3))).swapaxes(2, 3)


def _sliced(backend: Subject, array: NumpyArray) -> Any:
    """Every other token, and the middle of the features, of a larger array."""
    wide = np.full((*array.shape[:2], 2 * array.shape[2], array.shape[3] + 3), 7, array.dtype)
    wide[:, :, ::2, 1:-2] = array
    return backend.array(wide)[:, :, ::2, 1:-2]


def _reversed(backend: Subject, array: NumpyArray) -> Any:
    """Tokens from the last to the first: a negative stride, where the library has such."""
    flipped = backend.array(np.ascontiguousarray(array[:, :, ::-1]))
    return array_api_compat.array_namespace(flipped).flip(flipped, axis=2)


def _read_only(backend: Subject, array: NumpyArray) -> Any:
    """Nothing may be written, where the library can say so."""
    copy = backend.array(array)
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
