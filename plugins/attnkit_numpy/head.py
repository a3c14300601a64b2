"""One head of one sequence, as the tiled path sees it: arrays, schedule, and what happens to the scores of a tile.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``n`` queries of a block, ``w`` keys of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnkit import AttentionRequest, MaskStructure, Operands, Schedule, Tile
from attnkit_numpy.layout import Array, dtype_of, plain
from attnkit_numpy.scores import cap, multiply

# Inside these bounds the scale goes into the queries: nothing overflows there that would not in the scores (A12).
_LEAST, _MOST = 2.0**-60, 2.0**60


class Walk(NamedTuple):
    """A schedule, and every block of queries ``(start, stop)`` with the tiles that it visits."""

    schedule: Schedule
    blocks: list[tuple[int, int, list[Tile]]]


class Head(NamedTuple):
    """What belongs to query head ``h`` of sequence ``b``, ``place = (b, h)``.

    ``query`` is ``[T, D]``, ``key`` ``[S, D]``, ``value`` ``[S, E]``: cut to their lengths, in the element type of the
    accumulation. ``scale`` is what is left to multiply scores by. In ``bias``, ``[T, S]``, axes of length 1 broadcast.
    """

    place: tuple[int, int]
    query: Array
    key: Array
    value: Array
    walk: Walk
    scale: float
    softcap: float | None
    bias: Array | None
    slope: float | None
    sink: float

    def finish(self, scores: Array, start: int, stop: int, tile: Tile) -> None:
        """Turn the products ``[n, w]`` of queries ``[start, stop)`` with the keys of a tile into scores, in place."""
        if self.scale != 1:
            multiply(scores, self.scale)
        if self.softcap is not None:
            cap(scores, self.softcap)
        if self.slope is not None:
            np.add(scores, self._ramp(self.slope, start, tile, scores), out=scores)
        if self.bias is not None:
            bias = cut(self.bias, slice(start, stop), slice(tile.start, tile.stop))
            np.add(scores, bias, out=scores, dtype=scores.dtype, casting="unsafe")
            hidden = bias == -np.inf
            if hidden.any():
                np.copyto(scores, -np.inf, where=hidden)
        if tile.kind != "full":
            self._hide(scores, start, stop, tile)

    def _ramp(self, slope: float, start: int, tile: Tile, scores: Array) -> Array:
        """Give ALiBi's ``-slope * |p - j|`` as a view ``[n, w]``: it depends on ``p - j`` alone."""
        (rows, keys), schedule = scores.shape, self.walk.schedule
        first = schedule.query_position + start - (schedule.key_position + tile.stop - 1)
        line = np.abs(np.arange(first, first + rows + keys - 1)).astype(scores.dtype)
        line *= -scores.dtype.type(slope)
        return np.lib.stride_tricks.sliding_window_view(line, keys)[:, ::-1]

    def _hide(self, scores: Array, start: int, stop: int, tile: Tile) -> None:
        """Replace the scores of hidden keys: outside the core, or anywhere where arrays hide some."""
        sides = ((tile.start, tile.core_start), (tile.core_stop, tile.stop))
        for first, last in ((tile.start, tile.stop),) if tile.masked else sides:
            if first < last:
                part = scores[:, first - tile.start : last - tile.start]
                np.copyto(part, -np.inf, where=_hidden(self.walk.schedule, start, stop, first, last))


def heads_of(
    query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest, tiles: tuple[int, int]
) -> Iterator[Head]:
    """Give every head in order; arrays are brought into shape when their first head comes."""
    dtype = dtype_of(request.accumulate)
    for b in range(request.batch):
        bounds = operands.bounds(b)
        walk = None
        for h in range(request.num_heads):
            if h % request.group == 0:
                keys, values = (plain(array[b, h // request.group, : bounds[1]], dtype) for array in (key, value))
            if walk is None or any(array.shape[1] > 1 for array in operands.dense):
                walk = _walk(request.mask, bounds, operands, b, h, tiles)
            queries, scale = _scaled(query[b, h, : bounds[0]].astype(dtype), request.scale)
            yield Head(
                place=(b, h),
                query=queries,
                key=keys,
                value=values,
                walk=walk,
                scale=scale,
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


def _scaled(query: Array, scale: float) -> tuple[Array, float]:
    """Multiply the scale into a fresh array of queries where that is safe; gives what is left to multiply scores by."""
    peak = abs(scale) * max(float(query.max(initial=0)), -float(query.min(initial=0)))
    if not (peak == 0 or (_LEAST < peak < _MOST and _LEAST < abs(scale) < _MOST)):
        return query, scale
    np.multiply(query, scale, out=query)
    return query, 1.0


def _walk(
    structure: MaskStructure,
    bounds: tuple[int, int, int, int],
    operands: Operands,
    b: int,
    h: int,
    tiles: tuple[int, int],
) -> Walk:
    schedule = Schedule(
        structure,
        *bounds,
        *tiles,
        documents=tuple((sequence_part(q, b), sequence_part(k, b)) for q, k in operands.documents),
        dense=tuple(head_part(array, b, h) for array in operands.dense),
    )
    return Walk(schedule, [(start, stop, list(schedule.tiles(start, stop))) for start, stop in schedule.rows()])


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
