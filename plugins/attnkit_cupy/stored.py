"""Stored: where kernels read keys and values from, in arrays or in the planes of a cache, without a copy.

Axes: ``B`` sequences, ``K`` key/value heads, ``S`` keys, ``N`` slots, ``D`` and ``E`` head sizes, ``F`` features of a
plane, ``P`` pages of a sequence.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self
from weakref import ref

import numpy as np

from attnkit import Pages, Planes, SlotTable
from attnkit_cupy.layout import element_strides, element_type, readable
from attnkit_cupy.runtime import Runtime, ptr
from attnkit_cupy.steps import PageTable, StepTable

Array = Any
Span = tuple[int, int]
Strides = tuple[int, int, int]

_NO_STRIDES: Strides = (0, 0, 0)
_VECTOR_BYTES = 16


class TokenSource(NamedTuple):
    """Keys, or values.

    Attributes
    ----------
    array
        Tokens ``[B, K, S, D]``, or a plane ``[K, N, F]`` of tokens or codes; features are contiguous.
    address
        Where it begins.
    strides
        From one sequence, head, and key or slot to the next, in elements.
    kind
        Element type of native tokens, else the codec: ``"int8"``, ``"int4"``, ``"fp8"``.
    scales, scales_strides
        The plane of scales of a codec.
    block
        Features that share a scale.
    """

    array: Array
    address: int
    strides: Strides
    kind: str
    scales: Array | None = None
    scales_strides: Strides = _NO_STRIDES
    block: int = 1

    @property
    def aligned(self) -> bool:
        """Whether every token begins at a multiple of 16 bytes, as wide copies need."""
        size = self.array.dtype.itemsize
        places = self.address, *(stride * size for stride in self.strides)
        return all(place % _VECTOR_BYTES == 0 for place in places)


class StoredKind(NamedTuple):
    """What the choice of a kernel looks at: element types or codecs, and whether wide copies can be used."""

    key: str
    value: str
    dtype: str
    paged: bool
    aligned: bool

    @property
    def native(self) -> bool:
        """Whether keys and values are stored as they are."""
        return self.key == self.value == self.dtype


class Stored(NamedTuple):
    """Keys and values of one call.

    Attributes
    ----------
    key, value
        Where they lie.
    dtype
        Element type of a token, decoded where there is a codec.
    pages
        The slots of the tokens; ``None`` where key ``j`` lies at ``j`` times the last stride.
    """

    key: TokenSource
    value: TokenSource
    dtype: str
    pages: PageTable | None = None

    @property
    def kind(self) -> StoredKind:
        """What kind of storage it is."""
        aligned = self.key.aligned and self.value.aligned
        return StoredKind(self.key.kind, self.value.kind, self.dtype, self.pages is not None, aligned)

    @classmethod
    def of_arrays(cls, key: Array, value: Array, runtime: Runtime) -> Self:
        """Read arrays ``[B, K, S, D]`` and ``[B, K, S, E]`` where they lie; a copy of what no kernel can read."""
        key, value = readable(key, runtime.xp), readable(value, runtime.xp)
        return cls(_array_source(key), _array_source(value), element_type(key))

    @classmethod
    def of_packed(cls, key: Array, value: Array, starts: Sequence[int], runtime: Runtime) -> Self:
        """Read sequences laid end to end, ``[M, K, D]`` and ``[M, K, E]``: each is one page, from its start on."""
        xp = runtime.xp
        key, value = (readable(array.transpose(1, 0, 2), xp) for array in (key, value))
        longest = max(stop - start for start, stop in pairwise(starts))
        table = PageTable(xp.asarray(np.array(starts[:-1], np.int32)[:, None]), None, max(longest, 1))
        return cls(_plane_source(key), _plane_source(value), element_type(key), table)

    @classmethod
    def of_pages(cls, pages: Pages, table: SlotTable | StepTable, runtime: Runtime) -> Self:
        """Read planes where they lie: by strides where the sequences lie alike, else by a page table."""
        dtype = pages.key.dtype
        if isinstance(table, StepTable):
            return cls(_strided(pages.key, 0, 0), _strided(pages.value, 0, 0), dtype, table.pages)
        if table.stride is not None:
            return cls(_strided(pages.key, *table.stride), _strided(pages.value, *table.stride), dtype)
        mirror = MIRRORS.of(table, pages.page_size, runtime)
        return cls(_strided(pages.key, 0, 0), _strided(pages.value, 0, 0), dtype, mirror)


def _plane_source(plane: Array) -> TokenSource:
    return TokenSource(plane, ptr(plane), _plane_strides(plane, 0), element_type(plane))


def _array_source(array: Array) -> TokenSource:
    sequence, head, key, _ = element_strides(array)
    return TokenSource(array, ptr(array), (sequence, head, key), element_type(array))


def _strided(planes: Planes, first: int, step: int) -> TokenSource:
    """Read planes from a slot on, with each sequence ``step`` slots behind the one before it."""
    arrays = [plane[:, first:] for plane in planes.arrays]
    strides = [_plane_strides(plane, step) for plane in arrays]
    if planes.is_native:
        return TokenSource(arrays[0], ptr(arrays[0]), strides[0], planes.dtype)
    block = planes.codec.block or planes.size
    return TokenSource(arrays[0], ptr(arrays[0]), strides[0], planes.codec.kind, arrays[1], strides[1], block)


def _plane_strides(plane: Array, step: int) -> Strides:
    head, slot, _ = element_strides(plane)
    return step * slot, head, slot


class Mirrors:
    """Page tables on the device, built once for all layers: they share their table of slots."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[ref[SlotTable], Runtime, PageTable]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, table: SlotTable, page_size: int, runtime: Runtime) -> PageTable:
        """Give the page table of a table of slots, in pages of ``page_size`` or of one slot."""
        key = id(table), page_size, id(runtime), runtime.place
        known = self._known.get(key)
        if known is not None and known[0]() is table and known[1] is runtime:
            return known[2]
        made = page_table(table, page_size, runtime)
        self._known[key] = ref(table, lambda _: self._known.pop(key, None)), runtime, made
        return made


MIRRORS = Mirrors()


def page_table(table: SlotTable, page_size: int, runtime: Runtime) -> PageTable:
    """Build a page table: in pages of ``page_size`` where all spans but the ends are made of them, else of 1."""
    size = page_size if all(_in_pages(spans, page_size) for spans in table.spans) else 1
    rows = [_first_slots(spans, size) for spans in table.spans]
    starts = [-(spans[0][1] - spans[0][0]) % size if len(spans) > 1 else 0 for spans in table.spans]
    first_slots = np.zeros((len(rows), max([1, *map(len, rows)])), np.int32)
    for row, slots in zip(first_slots, rows, strict=True):
        row[: len(slots)] = slots
    xp = runtime.xp
    return PageTable(xp.asarray(first_slots), xp.asarray(np.array(starts, np.int64)), size)


def _in_pages(spans: tuple[Span, ...], size: int) -> bool:
    """Tell whether spans are cut into pages by counting from the end of the first one."""
    return all((stop - start) % size == 0 for start, stop in spans[1:-1])


def _first_slots(spans: tuple[Span, ...], size: int) -> list[int]:
    """Give the slot of the first place of each page; that of the first page may come before the first token."""
    slots: list[int] = []
    for number, (start, stop) in enumerate(spans):
        before = -(stop - start) % size if number == 0 and len(spans) > 1 else 0
        slots.extend(range(start - before, stop, size))
    return slots
