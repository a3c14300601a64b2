"""Pages, where keys and values are stored, and PageTable, which slots of them a sequence lives in.

A *slot* is ``page * page_size + offset``. Every cache layout is a way to hand out slots: a contiguous sequence is one
large page, a ring is pages of which the first slots are dead, a paged sequence is any list of pages. A backend stores
and reads slots and never needs to know the layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from attnkit.arrays import dtype_name

Array = Any
IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Pages:
    """Storage of one layer: key ``[P, K, page_size, D]``, value ``[P, K, page_size, E]``.

    ``key_scale`` and ``value_scale`` belong to codecs that store scaled integers; ``None`` for native storage.
    """

    key: Array
    value: Array
    key_scale: Array | None = None
    value_scale: Array | None = None

    @property
    def page_size(self) -> int:
        """Slots in a page."""
        return int(self.key.shape[2])

    @property
    def dtype(self) -> str:
        """Name of the stored element type."""
        return dtype_name(self.key.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        arrays = (self.key, self.value, self.key_scale, self.value_scale)
        return sum(int(array.nbytes) for array in arrays if array is not None)


@dataclass(frozen=True)
class PageTable:
    """Which slots each sequence lives in, in token order; host integers.

    Parameters
    ----------
    index
        ``[B, n]``: the pages of each sequence, ``-1`` past its last.
    start
        ``[B]``: dead slots before the first live one, in the slots of its pages laid end to end.
    """

    index: IntArray
    start: IntArray

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether sequence ``b`` is page ``b`` from its first slot on."""
        rows = np.arange(self.index.shape[0])
        return self.index.shape[1] == 1 and bool((self.index[:, 0] == rows).all()) and not self.start.any()

    def slots(self, lengths: IntArray, page_size: int) -> IntArray:
        """Give the slots of the live tokens, ``[B, max(lengths)]``; ``-1`` past the length ``[B]`` of a sequence."""
        token = np.arange(int(lengths.max(initial=0)))[None, :]
        place = self.start[:, None] + token
        page = np.take_along_axis(self.index, np.minimum(place // page_size, self.index.shape[1] - 1), axis=1)
        return np.where(token < lengths[:, None], page * page_size + place % page_size, -1)


def runs(slots: IntArray, page_size: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Cut slots ``[B, T]`` into runs that are consecutive inside one page.

    Yields
    ------
    sequence, start, stop, page, offset
        Tokens ``[start, stop)`` of a sequence lie in ``page`` from ``offset`` on; negative slots are left out.
    """
    for sequence, row in enumerate(slots):
        if row.size == 1:  # decoding: one new token
            if row[0] >= 0:
                yield (sequence, 0, 1, *divmod(int(row[0]), page_size))
            continue
        if not page_size or not row.size:  # pages without a slot: nothing is to be written
            continue
        breaks = (np.diff(row) != 1) | (row[1:] % page_size == 0)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), row.size]
        for start, stop in pairwise(edges):
            if row[start] >= 0:
                page, offset = divmod(int(row[start]), page_size)
                yield sequence, start, stop, page, offset
