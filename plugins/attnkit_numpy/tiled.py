"""The tiled path: blocks of queries walk the tiles that their mask leaves; never a T x S array.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``n`` queries of a block, ``w`` keys of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands, Tile
from attnkit_numpy.head import Head, heads_of
from attnkit_numpy.layout import Array
from attnkit_numpy.running import RunningSoftmax
from attnkit_numpy.scratch import SCRATCH
from attnkit_numpy.threads import share


class Block(NamedTuple):
    """Queries ``[start, stop)`` of a head, their tiles, and where their result goes: ``[n, E]`` and ``[n]``."""

    head: Head
    start: int
    stop: int
    tiles: list[Tile]
    output: Array
    lse: Array | None


def tile_sizes(request: AttentionRequest) -> tuple[int, int]:
    """Give queries and keys of a tile.

    Large tiles mean fewer calls and less copying inside BLAS, small ones lie closer to the edge of a mask. Least times
    of many, causal, float32, one thread, AVX2, as multiples of torch's fused attention, at T = 2048, D = 128 and 64:
    1.19 and 1.28 for 128 x 1024, 1.18 and 1.27 for 256 x 1024, 1.24 and 1.37 for 128 x 512.
    """
    edges = request.mask.left is not None or bool(request.mask.chunks)
    long = request.query_length >= 4096 and not edges
    return 256 if long or not request.mask.positional else 128, 1024


def plan(request: AttentionRequest) -> Callable[[Array, Array, Array, Operands], AttentionOutput]:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    return partial(_attend, request=request)


def _attend(query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest) -> AttentionOutput:
    shape = query.shape[:3]
    output = np.empty((*shape, value.shape[3]), query.dtype)
    lse = np.empty(shape, request.accumulate) if request.lse else None
    blocks = _blocks(query, key, value, operands, request, AttentionOutput(output, lse))
    share(solve, blocks, products=query.size * key.shape[2])
    return AttentionOutput(output, lse)


def _blocks(
    query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest, result: AttentionOutput
) -> Iterator[Block]:
    """Give the blocks of all heads, the last queries first: under a causal mask they have the most to do."""
    for head in heads_of(query, key, value, operands, request, tile_sizes(request)):
        output, lse = result.output[head.place], None if result.lse is None else result.lse[head.place]
        valid = len(head.query)
        output[valid:] = 0
        if lse is not None:
            lse[valid:] = head.sink
        for start, stop, tiles in reversed(head.walk.blocks):
            yield Block(head, start, stop, tiles, output[start:stop], None if lse is None else lse[start:stop])


def solve(block: Block) -> None:
    """Compute one block."""
    head, start, stop = block.head, block.start, block.stop
    query, dtype = head.query[start:stop], head.query.dtype
    softmax = RunningSoftmax(head.sink, dtype)
    for tile in block.tiles:
        scores = SCRATCH.take("scores", stop - start, tile.stop - tile.start, dtype)
        np.matmul(query, head.key[tile.start : tile.stop].T, out=scores)
        head.finish(scores, start, stop, tile)
        softmax.add(scores, head.value[tile.start : tile.stop])
    softmax.finish(block.output, block.lse)
