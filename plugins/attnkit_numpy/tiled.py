"""The tiled path: blocks of queries walk the tiles that their mask leaves; never a T x S array.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``n`` queries of a block, ``w`` keys of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands
from attnkit_numpy.head import Head, heads_of
from attnkit_numpy.layout import Array
from attnkit_numpy.running import SCRATCH, RunningSoftmax
from attnkit_numpy.threads import share

TILE_QUERIES, TILE_KEYS = 128, 1024

# Inside these bounds the scale goes into the queries: nothing overflows there that would not in the scores (A12).
_LEAST, _MOST = 2.0**-60, 2.0**60


class Block(NamedTuple):
    """Queries ``[start, stop)`` of a head, and where their result goes: ``[n, E]`` and ``[n]``."""

    head: Head
    start: int
    stop: int
    output: Array
    lse: Array | None


def plan(request: AttentionRequest) -> Callable[[Array, Array, Array, Operands], AttentionOutput]:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    return partial(_attend, request=request)


def _attend(query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest) -> AttentionOutput:
    shape = query.shape[:3]
    output = np.empty((*shape, value.shape[3]), query.dtype)
    lse = np.empty(shape, request.accumulate) if request.lse else None
    share(solve, _blocks(query, key, value, operands, request, AttentionOutput(output, lse)))
    return AttentionOutput(output, lse)


def _blocks(
    query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest, result: AttentionOutput
) -> Iterator[Block]:
    """Give the blocks of all heads, the last queries first: under a causal mask they have the most to do."""
    for head in heads_of(query, key, value, operands, request, (TILE_QUERIES, TILE_KEYS)):
        output, lse = result.output[head.place], None if result.lse is None else result.lse[head.place]
        valid = head.schedule.query_length
        output[valid:] = 0
        if lse is not None:
            lse[valid:] = head.sink
        for start, stop in reversed(list(head.schedule.rows())):
            yield Block(head, start, stop, output[start:stop], None if lse is None else lse[start:stop])


def solve(block: Block) -> None:
    """Compute one block."""
    head, start, stop = block.head, block.start, block.stop
    query, scale = _scaled(head.query[start:stop].astype(head.dtype), head.scale)
    softmax = RunningSoftmax(stop - start, head.value.shape[1], head.sink, head.dtype)
    for tile in head.schedule.tiles(start, stop):
        scores = SCRATCH.take("scores", stop - start, tile.stop - tile.start, head.dtype)
        np.matmul(query, head.key[tile.start : tile.stop].T, out=scores)
        head.finish(scores, scale, start, stop, tile)
        softmax.add(scores, head.value[tile.start : tile.stop])
    softmax.finish(block.output, block.lse)


def _scaled(query: Array, scale: float) -> tuple[Array, float]:
    """Multiply the scale into a fresh array of queries where that is safe; gives what is left to multiply scores by."""
    peak = abs(scale) * max(float(query.max()), -float(query.min()))
    if not (peak == 0 or (_LEAST < peak < _MOST and _LEAST < abs(scale) < _MOST)):
        return query, scale
    np.multiply(query, scale, out=query)
    return query, 1.0
