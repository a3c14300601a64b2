"""Trails: the slots of one sequence, and how its tokens are read where they lie.

Axes: ``k`` key/value heads, ``N`` slots, ``n`` tokens, ``F`` features of a plane.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Any

import numpy as np

from attnkit_numpy.layout import Array
from attnkit_numpy.scratch import SCRATCH

# From so many tokens on, on average, runs are copied one by one: a copy in a loop starts late, and then goes faster.
_LONG_RUN = 128


class Trail:
    """The slots ``[n]`` of one sequence, in token order, in pages of ``size`` slots."""

    def __init__(self, slots: Array, size: int) -> None:
        self._slots = slots
        jumps = np.flatnonzero(slots[1:] - slots[:-1] != 1) + 1
        self._jumps: list[int] = jumps.tolist()  # the tokens that do not lie right behind the one before
        paged = size > 1 and self.mean_run < _LONG_RUN and _from_page_to_page(slots, jumps, size)
        self._size = size if paged else 1
        self._pages: Array = slots[::size] // size if paged else slots

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def mean_run(self) -> float:
        """Tokens that lie side by side, on average."""
        return len(self._slots) / (len(self._jumps) + 1)

    def in_a_row(self, start: int, stop: int) -> bool:
        """Tell whether tokens ``[start, stop)`` lie side by side."""
        return bisect_right(self._jumps, start) == bisect_right(self._jumps, stop - 1)

    def read(self, plane: Array, start: int, stop: int) -> Array:
        """Give tokens ``[start, stop)`` of ``[k, N, F]``: a view of what lies in a row, else a copy in ``SCRATCH``."""
        jumps = self._jumps[bisect_right(self._jumps, start) : bisect_right(self._jumps, stop - 1)]
        if not jumps:
            return self._run(plane, start, stop)
        if len(jumps) * _LONG_RUN > stop - start:
            return self._copy_pages(plane, start, stop)
        heads, _, features = plane.shape
        found = _scratch(heads, stop - start, features, plane.dtype)
        for low, high in pairwise([start, *jumps, stop]):
            found[:, low - start : high - start] = self._run(plane, low, high)
        return found

    def _run(self, plane: Array, start: int, stop: int) -> Array:
        """Give a view of tokens in a row."""
        first = int(self._slots[start])
        return plane[:, first : first + stop - start]

    def _copy_pages(self, plane: Array, start: int, stop: int) -> Array:
        """Copy all of the pages that hold tokens ``[start, stop)``, and give these."""
        size, (heads, _, features) = self._size, plane.shape
        first, last = start // size, -(-stop // size)
        found = _scratch(heads, last - first, size * features, plane.dtype)
        # "clip", as NumPy copies once more where it may have to raise an error.
        plane.reshape(heads, -1, size * features).take(self._pages[first:last], 1, found, "clip")
        return found.reshape(heads, -1, features)[:, start - first * size : stop - first * size]


def _from_page_to_page(slots: Array, jumps: Array, size: int) -> bool:
    """Tell whether the slots begin with a page, and jump from the end of one page to the beginning of another alone."""
    return not ((slots[:1] % size).any() or (jumps % size).any() or (slots[jumps] % size).any())


def _scratch(heads: int, count: int, features: int, dtype: np.dtype[Any]) -> Array:
    """Give ``[heads, count, features]``; codes and their scales are of different element types, so they never meet."""
    return SCRATCH.take("tokens", heads * count, features, dtype).reshape(heads, count, features)
