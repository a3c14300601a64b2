"""Arrays of a library that no backend has heard of."""

from __future__ import annotations

from typing import Any

import numpy as np


class Foreign:
    """An array of a library that nobody has heard of."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __getitem__(self, index: Any) -> Foreign:
        return Foreign(self._array[index])

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0
