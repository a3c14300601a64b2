"""Buffers that a thread uses again and again: the system clears fresh memory, which takes as long as filling it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from attnkit_numpy.layout import Array


class Scratch(threading.local):
    """Buffers that a thread keeps from block to block, one for each element type and use."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, np.dtype[Any]], Array] = {}

    def take(self, name: str, rows: int, columns: int, dtype: np.dtype[Any]) -> Array:
        """Give ``[rows, columns]``, contiguous; what was in it is undefined."""
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.size < rows * columns:
            buffer = self._buffers[name, dtype] = np.empty(rows * columns, dtype)
        return buffer[: rows * columns].reshape(rows, columns)


SCRATCH = Scratch()
