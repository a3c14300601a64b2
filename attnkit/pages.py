"""Pages, where keys and values are stored, and SlotTable, which slots of them each sequence lives in.

A *plane* is one array of a backend, ``[K, N, F]``: ``N`` slots of ``F`` features for each key/value head. Heads come
first, so that slots in a row are one matrix a head, whatever pages they belong to. A *page* is ``page_size`` slots in a
row, and a *span* ``(start, stop)`` any slots in a row. Every cache layout is a way to hand out spans; a backend stores
and reads slots and never needs to know the layout.

Axes: ``B`` sequences, ``K`` key/value heads, ``N`` slots, ``n`` tokens, ``D`` key head size, ``E`` value head size,
``F`` features of a plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from attnkit.arrays import namespace
from attnkit.codec import Codec

Array = Any
IntArray = np.ndarray[Any, np.dtype[np.int64]]
Span = tuple[int, int]


class Store(Protocol):
    """What pages ask of a backend; see ``attnkit.Backend``."""

    def write(self, plane: Array, slots: IntArray, tokens: Array) -> None:
        """Store tokens ``[B, K, T, F]`` in slots ``[B, T]`` of a plane; negative slots are skipped."""

    def gather(self, plane: Array, slots: IntArray) -> Array:
        """Copy slots ``[B, n]`` of a plane out, ``[B, K, n, F]``; a negative slot gives zeros."""


@dataclass(frozen=True)
class Planes:
    """Keys, or values, of one layer.

    Attributes
    ----------
    arrays
        ``[K, N, F]`` each: the tokens themselves in native storage, else codes and scales, as the codec makes them.
    codec
        How tokens become planes and back.
    size, dtype
        Features and element type of a token: what decoding gives.
    """

    arrays: tuple[Array, ...]
    codec: Codec
    size: int
    dtype: str

    @property
    def is_native(self) -> bool:
        """Whether the only plane holds the tokens as they are, ``[K, N, size]`` in ``dtype``."""
        return self.codec.kind == "native"

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(int(array.nbytes) for array in self.arrays)

    def decode(self, arrays: Iterable[Array]) -> Array:
        """Give the tokens ``[..., size]`` of parts of the planes, ``[..., F]`` each."""
        return self.codec.decode(tuple(arrays), self.size, self.dtype)

    def write(self, store: Store, slots: IntArray, tokens: Array) -> None:
        """Store tokens ``[B, K, T, size]`` in slots ``[B, T]``; negative slots are skipped."""
        if self.is_native:  # storing converts by value
            store.write(self.arrays[0], slots, tokens)
            return
        for array, coded in zip(self.arrays, self.codec.encode(tokens, self.dtype), strict=True):
            store.write(array, slots, coded)

    def read(self, store: Store, slots: IntArray) -> Array:
        """Copy tokens out of slots ``[B, n]``: ``[B, K, n, size]``, zeros for negative slots."""
        return self.decode(store.gather(array, slots) for array in self.arrays)

    def view(self, table: SlotTable) -> Array | None:
        """Look at native tokens where they lie, ``[B, K, n, size]``; ``None`` where no view shows them all."""
        if not self.is_native or table.stride is None:
            return None
        (plane,), (first, step), batch, length = self.arrays, table.stride, len(table.spans), table.longest
        if batch == 1:
            return plane[None, :, first : first + length]
        if first + batch * step > plane.shape[1]:
            return None
        xp = namespace(plane)
        rows = xp.reshape(plane[:, first : first + batch * step], (plane.shape[0], batch, step, self.size))
        return xp.permute_dims(rows, (1, 0, 2, 3))[:, :, :length]


@dataclass(frozen=True)
class Pages:
    """Storage of one layer: the planes of its keys and of its values, and the slots in a page of them."""

    key: Planes
    value: Planes
    page_size: int

    @property
    def slots(self) -> int:
        """Slots in all."""
        return int(self.key.arrays[0].shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.key.nbytes + self.value.nbytes

    @property
    def planes(self) -> tuple[Array, ...]:
        """Every plane, those of the keys first."""
        return (*self.key.arrays, *self.value.arrays)

    def copy(self, store: Store, source: IntArray, target: Pages, slots: IntArray) -> None:
        """Copy what is stored, bit for bit, from slots ``[B, n]`` to slots ``[B, n]`` of pages of the same kind."""
        for old, new in zip(self.planes, target.planes, strict=True):
            store.write(new, slots, store.gather(old, source))


@dataclass(frozen=True)
class SlotTable:
    """Where each sequence lives: for each its spans of slots ``(start, stop)``, in token order; host integers."""

    spans: tuple[tuple[Span, ...], ...]

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens of each sequence, ``[B]``."""
        return np.array([sum(stop - start for start, stop in spans) for spans in self.spans], np.int64)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def slots(self) -> IntArray:
        """Slots of the tokens, ``[B, n]``; ``-1`` past the end of a shorter sequence."""
        slots = np.full((len(self.spans), self.longest), -1, np.int64)
        for row, spans in zip(slots, self.spans, strict=True):
            if spans:
                starts, stops = np.array(spans, np.int64).T
                ends = np.cumsum(stops - starts)
                shifts = starts - np.append(0, ends[:-1])  # from a token's place in the sequence to its slot
                row[: ends[-1]] = np.arange(ends[-1]) + np.repeat(shifts, stops - starts)
        return slots

    @cached_property
    def stride(self) -> tuple[int, int] | None:
        """First slot of the first sequence and slots from one to the next, where each is one span; else ``None``."""
        starts = [spans[0][0] for spans in self.spans if len(spans) == 1]
        if not starts or len(starts) < len(self.spans):
            return None
        if len(starts) == 1:
            return starts[0], self.longest
        steps = {after - before for before, after in pairwise(starts)}
        return (starts[0], steps.pop()) if len(steps) == 1 and min(steps) >= self.longest else None

    def row(self, sequence: int) -> SlotTable:
        """Give the table of one sequence alone."""
        return SlotTable((self.spans[sequence],))


def melted(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Join spans that follow each other, and leave out empty ones."""
    joined: list[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return tuple(joined)


def runs(slots: IntArray) -> Iterator[tuple[int, int, int, int]]:
    """Cut slots ``[B, T]`` into runs of consecutive ones.

    Yields
    ------
    sequence, start, stop, slot
        Tokens ``[start, stop)`` of a sequence lie in slots from ``slot`` on; negative slots are left out.
    """
    for sequence, row in enumerate(slots):
        if row.size == 1:  # decoding: one new token
            if row[0] >= 0:
                yield sequence, 0, 1, int(row[0])
            continue
        edges = [0, *(np.flatnonzero(np.diff(row) != 1) + 1).tolist(), row.size]
        for start, stop in pairwise(edges):
            if start < stop and row[start] >= 0:
                yield sequence, start, stop, int(row[start])
