"""One head of one sequence, as the tiled path sees it: arrays, schedule, and what happens to the scores of a tile.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``n`` queries of a block, ``w`` keys of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attnkit import AttentionRequest, MaskStructure, Operands, Schedule, Tile
from attnkit_numpy.layout import Array, dtype_of, plain
from attnkit_numpy.scores import cap, multiply


@dataclass(frozen=True, slots=True)
class Head:
    """What belongs to query head ``h`` of sequence ``b``, ``place = (b, h)``.

    ``query`` is ``[T, D]`` in its own element type; ``key`` ``[S, D]`` and ``value`` ``[S, E]``, cut to their length,
    are in ``dtype``, that of the accumulation. ``bias`` is ``[T, S]``, where axes of length 1 broadcast.
    """

    place: tuple[int, int]
    query: Array
    key: Array
    value: Array
    dtype: np.dtype[Any]
    schedule: Schedule
    scale: float
    softcap: float | None
    bias: Array | None
    slope: float | None
    sink: float

    def finish(self, scores: Array, scale: float, start: int, stop: int, tile: Tile) -> None:
        """Turn the products ``[n, w]`` of queries ``[start, stop)`` with the keys of a tile into scores, in place."""
        if scale != 1:
            multiply(scores, scale)
        if self.softcap is not None:
            cap(scores, self.softcap)
        if self.slope is not None:
            np.add(scores, self._ramp(self.slope, start, tile, scores.shape), out=scores)
        if self.bias is not None:
            bias = cut(self.bias, slice(start, stop), slice(tile.start, tile.stop))
            np.add(scores, bias, out=scores, dtype=self.dtype, casting="unsafe")
            hidden = bias == -np.inf
            if hidden.any():
                np.copyto(scores, -np.inf, where=hidden)
        if tile.kind != "full":
            self._hide(scores, start, stop, tile)

    def _ramp(self, slope: float, start: int, tile: Tile, shape: tuple[int, ...]) -> Array:
        """Give ALiBi's ``-slope * |p - j|`` as a view ``[n, w]``: it depends on ``p - j`` alone."""
        rows, keys = shape
        first = self.schedule.query_position + start - (self.schedule.key_position + tile.stop - 1)
        line = np.abs(np.arange(first, first + rows + keys - 1)).astype(self.dtype)
        line *= -self.dtype.type(slope)
        return np.lib.stride_tricks.sliding_window_view(line, keys)[:, ::-1]

    def _hide(self, scores: Array, start: int, stop: int, tile: Tile) -> None:
        """Replace the scores of hidden keys: outside the core, or anywhere where arrays hide some."""
        sides = ((tile.start, tile.core_start), (tile.core_stop, tile.stop))
        for first, last in ((tile.start, tile.stop),) if tile.masked else sides:
            if first < last:
                part = scores[:, first - tile.start : last - tile.start]
                np.copyto(part, -np.inf, where=_hidden(self.schedule, start, stop, first, last))


def heads_of(
    query: Array,
    key: Array,
    value: Array,
    operands: Operands,
    request: AttentionRequest,
    tiles: tuple[int, int],
) -> Iterator[Head]:
    """Give every head in order; keys and values are brought into shape when their first head comes."""
    dtype = dtype_of(request.accumulate)
    for b, kv_head in np.ndindex(key.shape[:2]):
        bounds = operands.bounds(b)
        keys, values = (plain(array[b, kv_head, : bounds.key_length], dtype) for array in (key, value))
        for h in range(kv_head * request.group, (kv_head + 1) * request.group):
            yield Head(
                place=(b, h),
                query=query[b, h],
                key=keys,
                value=values,
                dtype=dtype,
                schedule=_schedule(request.mask, bounds, operands, b, h, tiles),
                scale=request.scale,
                softcap=request.softcap,
                bias=None if operands.bias is None else head_part(operands.bias, b, h),
                slope=None if operands.alibi is None else float(operands.alibi[b % len(operands.alibi), h]),
                sink=-np.inf if operands.sinks is None else float(operands.sinks[h]),
            )


def head_part(array: Array, b: int, h: int) -> Array:
    """Take ``[T, S]`` out of what broadcasts to ``[B, H, T, S]``."""
    head: Array = array[b if array.shape[0] > 1 else 0, h if array.shape[1] > 1 else 0]
    return head


def cut(array: Array, rows: slice, keys: slice) -> Array:
    """Cut out of ``[T, S]``; an axis of length 1 broadcasts."""
    return array[rows if array.shape[0] > 1 else slice(None), keys if array.shape[1] > 1 else slice(None)]


def _schedule(
    structure: MaskStructure,
    bounds: tuple[int, int, int, int],
    operands: Operands,
    b: int,
    h: int,
    tiles: tuple[int, int],
) -> Schedule:
    return Schedule(
        structure,
        *bounds,
        *tiles,
        documents=tuple((sequence_part(q, b), sequence_part(k, b)) for q, k in operands.documents),
        dense=tuple(head_part(array, b, h) for array in operands.dense),
    )


def sequence_part(ids: Array, b: int) -> Array:
    """Take the ids of one sequence out of ``[length]`` or ``[B, length]``."""
    return ids if ids.ndim == 1 else ids[b]


def _hidden(schedule: Schedule, start: int, stop: int, first: int, last: int) -> Array:
    structure = schedule.structure
    if schedule.documents or schedule.dense or structure.prefix is not None or structure.chunks:
        return schedule.hidden(start, stop, Tile(first, last, first, first))
    distance = schedule.query_position + start - schedule.key_position - first
    return _band(structure, distance, stop - start, last - first)


@lru_cache(maxsize=16)
def _band(structure: MaskStructure, distance: int, rows: int, keys: int) -> Array:
    """Give the hidden keys of causal masks and windows, the same wherever query 0 stands ``distance`` after key 0."""
    return Schedule(structure, rows, keys, distance).hidden(0, rows, Tile(0, keys, 0, 0))
