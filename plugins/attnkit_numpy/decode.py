"""The decode path: few queries over many keys, each key read once.

The query heads of a group are folded into the rows of their key/value head, so that keys and values are never repeated;
other element types are converted block by block.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size, ``R = G * T`` folded rows, ``n`` keys in reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands, Schedule
from attnkit_numpy.layout import Array, dtype_of, plain
from attnkit_numpy.parts import Part, part_of
from attnkit_numpy.scores import cap, multiply, softmax
from attnkit_numpy.threads import BLAS, share

MOST_ROWS = 16

# Keys that are converted and multiplied at a time: half a megabyte of float32 at D = 128, which stays in the L2 cache.
_BLOCK = 1024

# One product of a row after the other is faster up to here, although it reads the keys again from the L2 cache.
_ROW_BY_ROW = 3

# Below so many elements of a head's keys, OpenBLAS uses no threads of its own, so there is no need to hold it to one.
_ALONE = 9_000

# Multiplications from which on helpers save more time than they cost. Measured on two cores at D = 64 and 128.
_SHARED = 2_000_000


def attend(query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest) -> AttentionOutput:
    """Compute ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    dtype = dtype_of(request.accumulate)
    batch, heads, rows, head_dim = query.shape
    output = np.empty((batch, heads, rows, value.shape[3]), dtype)
    lse = np.empty((batch, heads, rows), dtype) if request.lse else None
    work = partial(_solve, query, key, value, operands, request, AttentionOutput(output, lse))
    parts = _sequences(query.shape, operands, request)
    size = key.shape[2] * head_dim
    if batch * heads * rows * size >= _SHARED:
        share(work, _split(parts, request.group))
    elif size >= _ALONE:
        with BLAS:
            _do_all(work, parts)
    else:
        _do_all(work, parts)
    return AttentionOutput(output.astype(query.dtype, copy=False), lse)


def _sequences(shape: tuple[int, ...], operands: Operands, request: AttentionRequest) -> Iterator[Part]:
    """Give one part for all sequences, or one for each where their lengths or positions may differ."""
    batch, heads, rows, _ = shape
    differ = request.query_lengths or request.kv_lengths or request.query_offset or request.key_offset
    for start, stop in [(b, b + 1) for b in range(batch)] if differ else [(0, batch)]:
        keys, all_seen = _reach(request, operands.bounds(start))
        yield Part(slice(start, stop), slice(0, heads), slice(0, rows), keys, all_seen)


def _reach(request: AttentionRequest, bounds: tuple[int, int, int, int]) -> tuple[slice, bool]:
    """Give the keys that any query of a sequence sees by position, and whether each query sees them all."""
    queries, keys, *_ = bounds
    arrays = request.bias is not None or request.alibi or request.mask.documents or request.mask.dense
    if not request.mask.positional:
        return slice(0, keys), not arrays and queries == request.query_length
    if not queries:
        return slice(0, 0), True
    first, last, *core = Schedule(request.mask, *bounds).keys_of(0, queries)
    return slice(first, last), not arrays and queries == request.query_length and core == [first, last]


def _split(parts: Iterator[Part], group: int) -> Iterator[Part]:
    """Cut parts along sequences, or else key/value heads, into enough pieces for several threads."""
    for part in parts:
        if part.sequences.stop - part.sequences.start >= part.heads.stop // group:
            for sequences in _pieces(part.sequences, 1):
                yield part._replace(sequences=sequences)
        else:
            for heads in _pieces(part.heads, group):
                yield part._replace(heads=heads)


def _do_all(work: Callable[[Part], None], parts: Iterator[Part]) -> None:
    for part in parts:
        work(part)


def _pieces(whole: slice, unit: int) -> Iterator[slice]:
    """Cut a range into about eight pieces, multiples of ``unit``."""
    step = unit * max(1, (whole.stop - whole.start) // (8 * unit))
    for start in range(whole.start, whole.stop, step):
        yield slice(start, min(start + step, whole.stop))


def _solve(
    query: Array,
    key: Array,
    value: Array,
    operands: Operands,
    request: AttentionRequest,
    result: AttentionOutput,
    part: Part,
) -> None:
    """Compute the result for some sequences and heads."""
    sequences, heads, keys = part.sequences, part.heads, part.keys
    kv_heads = slice(heads.start // request.group, heads.stop // request.group)
    key, value = key[sequences, kv_heads, keys], value[sequences, kv_heads, keys]
    dtype = result.output.dtype
    whole = (key.shape[0], heads.stop - heads.start, query.shape[2])
    folded = (key.shape[0], key.shape[1], request.group * query.shape[2])

    scores = np.empty((*folded, key.shape[2]), dtype)
    _multiply_keys(plain(query[sequences, heads], dtype).reshape(*folded, query.shape[3]), key, scores)
    _finish(scores.reshape(*whole, key.shape[2]), operands, request, part)
    sinks = None if operands.sinks is None else _folded_sinks(operands.sinks[heads], folded, dtype)
    top, total = softmax(scores, sinks)

    output = _multiply_values(scores, value)
    if result.lse is not None:
        result.lse[sequences, heads] = (top + np.log(total)).reshape(whole)
    total[total == 0] = 1
    result.output[sequences, heads] = np.divide(output, total, out=output).reshape(*whole, value.shape[3])


def _multiply_keys(query: Array, key: Array, scores: Array) -> None:
    """Write ``query [b, k, R, D]`` times ``key [b, k, n, D]`` into ``scores [b, k, R, n]``."""
    row_by_row = query.shape[2] <= _ROW_BY_ROW
    for start, stop in _blocks(key.shape[2]):
        block = plain(key[:, :, start:stop], scores.dtype).swapaxes(-1, -2)
        target = scores[..., start:stop]
        if row_by_row:
            np.matmul(query[..., None, :], block[:, :, None], out=target[..., None, :])
        else:
            np.matmul(query, block, out=target)


def _multiply_values(weights: Array, value: Array) -> Array:
    """Give ``weights [b, k, R, n]`` times ``value [b, k, n, E]``."""
    total: Array | None = None
    for start, stop in _blocks(value.shape[2]):
        block, part = plain(value[:, :, start:stop], weights.dtype), weights[..., start:stop]
        if weights.shape[2] <= _ROW_BY_ROW:
            product = np.matmul(part[..., None, :], block[:, :, None])[..., 0, :]
        else:
            product = np.matmul(part, block)
        total = product if total is None else np.add(total, product, out=total)
    return np.zeros((*weights.shape[:3], value.shape[3]), weights.dtype) if total is None else total


def _blocks(keys: int) -> Iterator[tuple[int, int]]:
    for start in range(0, keys, _BLOCK):
        yield start, min(start + _BLOCK, keys)


def _finish(scores: Array, operands: Operands, request: AttentionRequest, part: Part) -> None:
    """Turn products ``[b, h, T, n]`` into scores, in place."""
    multiply(scores, request.scale)
    if request.softcap is not None:
        cap(scores, request.softcap)
    if not part.all_seen:
        operands = part_of(operands, part)
        bias = request.score_bias(operands)
        if bias is not None:
            np.add(scores, bias, out=scores)
        np.copyto(scores, -np.inf, where=np.logical_not(request.visible(operands)))


def _folded_sinks(sinks: Array, folded: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    """Give the sinks of some heads, one for each folded row, ``[k, R, 1]``."""
    _, kv_heads, rows = folded
    return np.repeat(sinks.astype(dtype), kv_heads * rows // max(1, len(sinks))).reshape(kv_heads, rows, 1)
