"""How the tiled path cuts a call: groups of heads that share one schedule, and how large their tiles are.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G`` query heads of one key/value head, ``T`` queries,
``S`` keys. Small letters are the part of an axis that a group has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from attnkit import AttentionRequest, Operands, Schedule, Tile

# Scores that exist at once, in elements, where a tile of one sequence does not need more: 16 MiB in float32, the cache
# of a CPU, and enough work to fill a GPU.
_SCORES = {"cpu": 2**22}
_MANY_SCORES = 2**26


class Sizes(NamedTuple):
    """Queries and keys of a tile."""

    rows: int
    keys: int


class Block(NamedTuple):
    """Some queries of a group, and the tiles that they visit."""

    rows: slice
    tiles: list[Tile]


class Group(NamedTuple):
    """Heads of neighbouring sequences that share one schedule, and so every mask.

    Attributes
    ----------
    sequences, heads, kv_heads
        What it covers of ``B``, ``H`` and ``K``.
    schedule
        Its tiles, and its valid lengths and positions.
    """

    sequences: slice
    heads: slice
    kv_heads: slice
    schedule: Schedule

    def of_queries(self, array: Tensor) -> Tensor:
        """Take ``[b, k, G, t, ...]``, a view, out of ``[B, H, T, ...]``."""
        part = array[self.sequences, self.heads, : self.schedule.query_length]
        return part.unflatten(1, (self._num_kv_heads, -1))

    def of_keys(self, array: Tensor) -> Tensor:
        """Take ``[b, k, s, ...]``, a view, out of ``[B, K, S, ...]``."""
        return array[self.sequences, self.kv_heads, : self.schedule.key_length]

    def of_scores(self, array: Tensor) -> Tensor:
        """Take ``[b, k, G, t, s]``, a view, out of ``[B, H, T, S]``; axes of length 1 broadcast and stay."""
        schedule = self.schedule
        ranges = self.sequences, self.heads, slice(schedule.query_length), slice(schedule.key_length)
        part = cut(array, ranges)
        return part.unflatten(1, (self._num_kv_heads, -1) if array.shape[1] > 1 else (1, 1))

    def is_whole(self, request: AttentionRequest) -> bool:
        """Tell whether there is no query beside its own."""
        everything = slice(0, request.batch), slice(0, request.num_heads), request.query_length
        return (self.sequences, self.heads, self.schedule.query_length) == everything

    def blocks(self) -> Iterator[Block]:
        """Give the blocks of queries that see any keys."""
        for start, stop in self.schedule.rows():
            tiles = list(self.schedule.tiles(start, stop))
            if tiles:
                yield Block(slice(start, stop), tiles)

    def resized(self, sizes: Sizes) -> Group:
        """Give the group with tiles of another size."""
        return self._replace(schedule=replace(self.schedule, tile_queries=sizes.rows, tile_keys=sizes.keys))

    @property
    def _num_kv_heads(self) -> int:
        return int(self.kv_heads.stop - self.kv_heads.start)


def tile_sizes(request: AttentionRequest) -> Sizes:
    """Give queries and keys of a tile of scores.

    Beside a window a block of few rows sees the fewest keys in vain.
    """
    return Sizes(128, 1024) if request.mask.left is not None else Sizes(256, 512)


def cut(array: Tensor, ranges: tuple[slice, ...]) -> Tensor:
    """Cut the leading axes; those of length 1 broadcast and stay."""
    return array[tuple(slice(None) if size == 1 else kept for size, kept in zip(array.shape, ranges, strict=False))]


def groups(operands: Operands, request: AttentionRequest, sizes: Sizes | None = None) -> Iterator[Group]:
    """Cut a call into as few groups as its lengths, documents and dense masks, and the sizes of its tiles, allow."""
    if not request.num_heads or not request.query_length:
        return
    sizes = sizes or tile_sizes(request)
    for sequences, bounds in _runs(operands, request, sizes):
        for heads, kv_heads in _heads(operands, request):
            schedule = Schedule(
                request.mask,
                *bounds,
                *sizes,
                documents=tuple((_ids(q, sequences), _ids(k, sequences)) for q, k in operands.documents),
                dense=tuple(_dense(array, sequences, heads) for array in operands.dense),
            )
            yield Group(sequences, heads, kv_heads, schedule)


def _runs(
    operands: Operands, request: AttentionRequest, sizes: Sizes
) -> Iterator[tuple[slice, tuple[int, int, int, int]]]:
    """Give ranges of sequences of equal lengths and positions, and equal arrays of the mask."""
    kind = request.device.partition(":")[0]
    most = _SCORES.get(kind, _MANY_SCORES) // (request.num_heads * sizes.rows * sizes.keys) or 1
    if any(ids.ndim > 1 for pair in operands.documents for ids in pair) or any(d.shape[0] > 1 for d in operands.dense):
        most = 1
    for bounds, run in groupby(range(request.batch), operands.bounds):
        found = list(run)
        for start in range(found[0], found[-1] + 1, most):
            yield slice(start, min(start + most, found[-1] + 1)), bounds


def _heads(operands: Operands, request: AttentionRequest) -> Iterator[tuple[slice, slice]]:
    """Give ranges of query heads and of their key/value heads: all of them, unless dense masks differ by head."""
    if all(array.shape[1] == 1 for array in operands.dense):
        yield slice(0, request.num_heads), slice(0, request.num_kv_heads)
        return
    for h in range(request.num_heads):
        kv_head = h // request.group
        yield slice(h, h + 1), slice(kv_head, kv_head + 1)


def _ids(ids: Any, sequences: slice) -> np.ndarray[Any, Any]:
    return _host(ids if ids.ndim == 1 else ids[sequences.start])


def _dense(array: Any, sequences: slice, heads: slice) -> np.ndarray[Any, Any]:
    return _host(array[sequences.start if array.shape[0] > 1 else 0, heads.start if array.shape[1] > 1 else 0])


def _host(array: Any) -> np.ndarray[Any, Any]:
    """Give a NumPy view of a tensor on the CPU, or a copy of one elsewhere."""
    return np.asarray(array.detach().cpu() if isinstance(array, Tensor) else array)
