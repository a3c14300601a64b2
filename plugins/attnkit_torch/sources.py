"""Sources: the keys and values of a call, wherever they lie, for a path that reads them piece by piece.

Axes: ``B`` sequences, ``K`` key/value heads, ``N`` slots, ``n`` tokens, ``D`` key head size, ``E`` value head size,
``F`` features of a plane; ``b``, ``k`` and ``s`` are a group's share, ``w`` keys of a piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from attnkit import Backend, Pages, Planes, SlotTable
from attnkit_torch.spans import IntArray, Trail, common_step, edges_of, in_slot_order, slots_of
from attnkit_torch.tiling.tiles import Group

# Elements of keys that are copied or decoded at a time: on a CPU they are still in the cache when they are multiplied.
_COPIED = {"cpu": 2**18}
_MANY_COPIED = 2**24

# Keys of a block at the least.
_FEWEST = 64

# Slots in a row from which on a kernel reads them where they are, rather than with others in a copy.
_LONG = 128

# Elements of all keys up to which one copy of everything costs less than reading each sequence by itself, in views or
# in copies. Float32, on one thread of a machine with AVX2 that did other work too, in microseconds a call, B = 4:
#
#                              views   copy    copies   copy    slots
#   K = 3, D = 64   S = 64       584    299      1083    266    consecutive, or shuffled by 16
#                   S = 256     1072    648      1596    638
#                   S = 1024    3694   3122      4927   3204
#   K = 8, D = 128  S = 64      1461   1217      1476    731
#                   S = 256     3199   4329      5770   4592
#                   S = 1024   10575  15725     23010  18738
_SMALL_VIEWS, _SMALL_COPIES = 2**18, 2**20


class Reader(Protocol):
    """The keys of a group, and their values."""

    @property
    def most(self) -> int:
        """Keys of a block at the most."""

    def whole(self, first: int, last: int) -> Iterator[Tensors]:
        """Give keys ``[first, last)`` in few pieces, and in any order; the next may overwrite the one before."""

    def block(self, keys: slice) -> Tensors:
        """Give some keys in their order; the next may overwrite them."""


class Unit(NamedTuple):
    """Sequences that are read together: their place in a group, the group that they are, and their keys."""

    place: slice
    group: Group
    reader: Reader


class Source(Protocol):
    """The keys of a call, and their values."""

    def units(self, group: Group) -> Iterator[Unit]:
        """Cut a group into sequences that are read together."""


class Tensors(NamedTuple):
    """Keys ``[b, k, s, D]`` and values ``[b, k, s, E]`` in a tensor each."""

    key: Tensor
    value: Tensor

    def units(self, group: Group) -> Iterator[Unit]:
        """Give the group."""
        yield Unit(slice(None), group, Tensors(group.of_keys(self.key), group.of_keys(self.value)))

    @property
    def most(self) -> int:
        """All keys, unless a product copies them first: matrices of a batch have to lie at equal steps."""
        batch, heads, keys, size = map(int, self.key.shape)
        if batch == 1 or heads == 1 or self.key.stride(0) == heads * self.key.stride(1):
            return max(1, keys)
        return _most_copied(batch * heads * size, self.key.device)

    def whole(self, first: int, last: int) -> Iterator[Tensors]:
        """Give keys ``[first, last)`` in one piece."""
        yield self.block(slice(first, last))

    def block(self, keys: slice) -> Tensors:
        """Give some keys."""
        return Tensors(self.key[:, :, keys], self.value[:, :, keys])


class Stored(NamedTuple):
    """Keys, or values, in the slots of a cache."""

    planes: Planes
    table: SlotTable


Keys: TypeAlias = Tensor | Stored
"""Keys, or values, ``[B, K, n, D]``."""


def _most_copied(elements: int, device: torch.device) -> int:
    """Give how many keys of so many elements each are copied at a time."""
    return max(_FEWEST, _COPIED.get(device.type, _MANY_COPIED) // elements)


def source_of(key: Keys, value: Keys) -> Source:
    """Give the source of keys and values that both lie in tensors, or both in a cache."""
    if isinstance(key, Stored):
        return Slots(key.planes, cast(Stored, value).planes, key.table)
    return Tensors(key, cast(Tensor, value))


class Slots:
    """Keys and values in the slots of a cache."""

    def __init__(self, key: Planes, value: Planes, table: SlotTable) -> None:
        self._planes = key, value
        self._table = table
        self._scratch = Scratch()

    def units(self, group: Group) -> Iterator[Unit]:
        """Give the group if its sequences lie at equal steps, else each of its sequences."""
        start, rows = group.sequences.start, self._table.spans[group.sequences]
        step = common_step(rows)
        if step is not None:
            yield Unit(slice(None), group, self._reader(group, step))
            return
        for place in range(len(rows)):
            part = group._replace(sequences=slice(start + place, start + place + 1))
            yield Unit(slice(place, place + 1), part, self._reader(part, 0))

    def _reader(self, group: Group, step: int) -> Reader:
        sequences = group.sequences
        lane = Lane(group.kv_heads, sequences.stop - sequences.start, step)
        return SlotReader(*self._planes, Trail(self._table.spans[sequences.start]), lane, self._scratch)


class Scratch:
    """Room for copies out of planes; the next copy out of a plane overwrites the one before."""

    def __init__(self) -> None:
        self._rooms: dict[int, Tensor] = {}

    def copy(self, plane: Tensor, slots: Tensor) -> Tensor:
        """Copy slots ``[n]`` of ``[k, N, F]``, ``[k, n, F]``."""
        shape = plane.shape[0], len(slots), plane.shape[2]
        place, size = plane.untyped_storage().data_ptr(), math.prod(shape)
        if place not in self._rooms or self._rooms[place].numel() < size:
            self._rooms[place] = plane.new_empty(size)
        return torch.index_select(plane, 1, slots, out=self._rooms[place][:size].view(shape))


class Lane(NamedTuple):
    """Heads of some sequences that lie alike, each ``step`` slots behind the one before."""

    heads: slice
    batch: int
    step: int

    def view(self, plane: Tensor, start: int, stop: int) -> Tensor:
        """Look at slots ``[start, stop)`` of the first sequence, and those of the others, ``[b, k, w, F]``."""
        head, slot, feature = plane.stride()
        heads = self.heads.stop - self.heads.start
        shape = self.batch, heads, stop - start, plane.shape[2]
        place = plane.storage_offset() + self.heads.start * head + start * slot
        return plane.as_strided(shape, (self.step * slot, head, slot, feature), place)

    def copy(self, plane: Tensor, slots: Tensor, scratch: Scratch) -> Tensor:
        """Copy slots ``[w]`` of the first sequence, and those of the others, ``[b, k, w, F]``."""
        if self.heads != slice(0, plane.shape[0]):
            plane = plane[self.heads]
        if self.batch == 1:
            return scratch.copy(plane, slots)[None]
        steps = self.step * torch.arange(self.batch, device=slots.device)[:, None]
        return scratch.copy(plane, (steps + slots).flatten()).unflatten(1, (self.batch, -1)).transpose(0, 1)


class SlotReader(NamedTuple):
    """Reads views of long spans, and copies of short ones; what is coded is decoded as it comes."""

    key: Planes
    value: Planes
    trail: Trail
    lane: Lane
    scratch: Scratch

    @property
    def most(self) -> int:
        """Keys whose copies stay in the processor's cache."""
        heads = self.lane.batch * int(self.lane.heads.stop - self.lane.heads.start)
        return _most_copied(heads * max(self.key.size, self.value.size), self.key.arrays[0].device)

    def whole(self, first: int, last: int) -> Iterator[Tensors]:
        """Give keys ``[first, last)``; the next piece may overwrite the one before."""
        spans = self.trail.cut(first, last)
        if len(spans) == 1:
            yield from self._views(*spans[0])
            return
        edges = in_slot_order(edges_of(spans))
        long = edges[:, 1] - edges[:, 0] >= _LONG
        for start, stop in edges[long].tolist():
            yield from self._views(start, stop)
        if not long.all():
            for slots in self._index(edges[~long]).split(self.most):
                yield self._copy(slots)

    def block(self, keys: slice) -> Tensors:
        """Give some keys: a view if they lie in one span."""
        spans = self.trail.cut(keys.start, keys.stop)
        return self._view(*spans[0]) if len(spans) == 1 else self._copy(self._index(edges_of(spans)))

    def _views(self, start: int, stop: int) -> Iterator[Tensors]:
        """Give a span, in one piece if nothing has to be decoded."""
        native = self.key.is_native and self.value.is_native
        step = stop - start if native else self.most
        for low in range(start, stop, step):
            yield self._view(low, min(low + step, stop))

    def _index(self, edges: IntArray) -> Tensor:
        return torch.from_numpy(slots_of(edges)).to(self.key.arrays[0].device)

    def _view(self, start: int, stop: int) -> Tensors:
        return self._decoded(lambda plane: self.lane.view(plane, start, stop))

    def _copy(self, slots: Tensor) -> Tensors:
        return self._decoded(lambda plane: self.lane.copy(plane, slots, self.scratch))

    def _decoded(self, part: Callable[[Tensor], Tensor]) -> Tensors:
        return Tensors(*(half.decode(map(part, half.arrays)) for half in (self.key, self.value)))


def keys_in(pages: Pages, table: SlotTable, backend: Backend, *, in_place: bool) -> tuple[Keys, Keys]:
    """Give keys and values in the slots of a table: views where there are any, else copies, or sources ``in_place``."""
    rows = _rows(pages, table)
    native = pages.key.is_native and pages.value.is_native
    if in_place and not (native and rows) and not _is_small(pages, table, native):
        return Stored(pages.key, table), Stored(pages.value, table)
    key, value = (half.read(backend, table.slots) if rows is None else rows(half) for half in (pages.key, pages.value))
    return key, value


def _is_small(pages: Pages, table: SlotTable, native: bool) -> bool:
    """Tell whether one copy of everything costs less than reading each sequence by itself."""
    if len(table.spans) == 1:
        return False
    tokens, spans = int(table.lengths.sum()), sum(map(len, table.spans))
    most = _SMALL_VIEWS if native and tokens >= _LONG * spans else _SMALL_COPIES
    return len(pages.key.arrays[0]) * pages.key.size * tokens <= most


def _rows(pages: Pages, table: SlotTable) -> Callable[[Planes], Tensor] | None:
    """Give what looks at all keys, or all values, ``[B, K, n, D]``, and decodes them; ``None`` without a view."""
    if table.stride is None:
        return None
    (first, step), batch, longest = table.stride, len(table.spans), table.longest
    if first + (batch - 1) * step + longest > pages.slots:
        return None
    lane = Lane(slice(0, len(pages.key.arrays[0])), batch, step)

    def rows(planes: Planes) -> Tensor:
        tokens: Tensor = planes.decode(lane.view(plane, first, first + longest) for plane in planes.arrays)
        return tokens

    return rows
