"""Sources: keys, or values, of a cache where they lie, for a path that reads them block by block.

Axes: ``B`` sequences, ``K`` key/value heads, ``n`` tokens, ``D`` head size, ``F`` features of a plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnkit import Backend, Pages, Planes, SlotTable
from attnkit_numpy.layout import Array, dtype_of
from attnkit_numpy.trail import Trail

# Elements that are copied or decoded at a time, a megabyte of float32.
_CHUNK = 2**18

# Bytes of the longest sequence up to which it takes less time to copy all at once than to read each by itself.
_LEAST = 2**18

Place = tuple[slice, slice, slice]
"""Sequences, heads and tokens."""

_ALL = slice(None)


@dataclass(frozen=True)
class Source:
    """Keys, or values, ``[B, K, n, D]``; to be cut as an array is.

    Attributes
    ----------
    planes
        What they are stored in.
    trails
        Where each sequence lies.
    keys
        Which tokens of each are meant.
    """

    planes: Planes
    trails: tuple[Trail, ...]
    keys: range

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``B``, ``K``, ``n`` and ``D``."""
        return len(self.trails), self.planes.arrays[0].shape[0], len(self.keys), self.planes.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of decoded tokens."""
        return dtype_of(self.planes.dtype)

    def __getitem__(self, place: Place) -> Source:
        sequences, heads, keys = place
        planes = self.planes
        arrays = tuple(array[heads] for array in planes.arrays)
        cut = Planes(arrays, planes.codec, planes.size, planes.dtype)
        return Source(cut, self.trails[sequences], self.keys[keys])

    def blocks(self, size: int) -> Iterator[tuple[Place, Array]]:
        """Give all tokens, ``size`` of a sequence at most; a block is good until the thread asks for another."""
        for b, trail in enumerate(self.trails):
            for start, stop in self._chunks(trail, size):
                for heads, tokens in self._read(trail, start, stop):
                    for low in range(start, stop, size):
                        high = min(low + size, stop)
                        yield (slice(b, b + 1), heads, slice(low, high)), tokens[None, :, low - start : high - start]

    def _chunks(self, trail: Trail, size: int) -> Iterator[tuple[int, int]]:
        """Cut the tokens of a sequence into blocks, or into several blocks to be copied or decoded at once."""
        length = len(range(self.keys.start, min(self.keys.stop, len(trail))))
        viewed = self.planes.is_native and trail.mean_run > size
        step = size if viewed else size * max(1, _CHUNK // (size * self.planes.size))
        for start in range(0, length, step):
            yield start, min(start + step, length)

    def _read(self, trail: Trail, start: int, stop: int) -> Iterator[tuple[slice, Array]]:
        """Give tokens ``[start, stop)`` of a sequence, ``[k, n, D]``, for some heads after others."""
        start, stop, heads = start + self.keys.start, stop + self.keys.start, self.shape[1]
        viewed = self.planes.is_native and trail.in_a_row(start, stop)
        step = heads if viewed else max(1, _CHUNK // ((stop - start) * self.planes.size))
        for first in range(0, heads, step):
            part = slice(first, min(first + step, heads))
            yield part, self.planes.decode(trail.read(array[part], start, stop) for array in self.planes.arrays)

    def whole(self) -> Array:
        """Copy everything; zeros stand behind a shorter sequence."""
        found = np.zeros(self.shape, self.dtype)
        for place, tokens in self.blocks(_CHUNK // self.planes.size or 1):
            found[place] = tokens
        return found


Keys = Array | Source
"""Keys, or values, ``[B, K, S, D]``."""


def blocks(keys: Keys, size: int) -> Iterator[tuple[Place, Array]]:
    """Cut keys ``[b, k, n, D]`` along ``n`` into blocks of ``size`` keys, and sources along ``b`` and ``k`` too."""
    if isinstance(keys, Source):
        yield from keys.blocks(size)
        return
    count = keys.shape[2]
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        yield (_ALL, _ALL, part), keys[:, :, part]


def keys_in(pages: Pages, table: SlotTable, backend: Backend, *, in_place: bool) -> tuple[Keys, Keys]:
    """Give keys and values in the slots of a table: views where there are any, else copies, or sources ``in_place``."""
    halves = pages.key, pages.value
    views = [half.view(table) for half in halves]
    copied = sum(_bytes_per_token(half) for half, view in zip(halves, views, strict=True) if view is None)
    small = copied * table.longest <= _LEAST
    give = partial(_copied, table, backend) if small or not in_place else _lying(table, pages.page_size)
    key, value = (give(half) if view is None else view for half, view in zip(halves, views, strict=True))
    return key, value


def _bytes_per_token(planes: Planes) -> int:
    """Give the bytes of a decoded token in all heads."""
    return int(planes.arrays[0].shape[0]) * planes.size * dtype_of(planes.dtype).itemsize


def _copied(table: SlotTable, backend: Backend, planes: Planes) -> Array:
    tokens: Array = planes.read(backend, table.slots)
    return tokens


def _lying(table: SlotTable, page: int) -> Callable[[Planes], Source]:
    lengths = table.lengths.tolist()
    trails = tuple(Trail(row[:length], page) for row, length in zip(table.slots, lengths, strict=True))
    return partial(Source, trails=trails, keys=range(table.longest))
