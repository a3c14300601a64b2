"""The decode path: few queries over many keys, each key read once.

The query heads of a group are folded into the rows of their key/value head, so that keys and values are never repeated;
other element types are converted block by block, and keys in the pages of a cache are read in the same blocks, so that
results do not depend on where they lie. Keys that no query sees by position are not read.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size, ``R = G * T`` folded rows, ``n`` keys in reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, MaskStructure, Operands, Schedule, Tile
from attnkit_numpy.layout import Array, dtype_of, plain
from attnkit_numpy.parts import Part, part_of
from attnkit_numpy.scores import add_and_hide, cap, multiply, softmax
from attnkit_numpy.sources import Keys, blocks
from attnkit_numpy.threads import SHARED, share

MOST_ROWS = 128

# Keys that are multiplied at a time: half a megabyte of float32 at D = 128, which stays in the L2 cache.
BLOCK = 1024

# Up to so many rows one product for each row is faster, although it reads a block again from the L2 cache, than one for
# all rows, for which BLAS copies the block first. Measured with OpenBLAS and AVX2, S = 8192, D = 64 and 128.
_ROW_BY_ROW_KEYS, _ROW_BY_ROW_VALUES = 4, 3

# Below so many elements in the keys of a head, and multiplications with them, OpenBLAS uses no threads of its own, so
# there is no need to hold it to one.
_ALONE, _ALONE_PRODUCTS = 9_000, 250_000

Edit = Callable[[Array], None]


def plan(request: AttentionRequest) -> Callable[[Array, Keys, Keys, Operands], AttentionOutput]:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    dtype = dtype_of(request.accumulate)
    rows = max(1, request.group * request.query_length)
    alone = min(_ALONE, _ALONE_PRODUCTS // rows) if _sees_everything(request) else 0

    def run(query: Array, key: Keys, value: Keys, operands: Operands) -> AttentionOutput:
        if key.shape[2] * key.shape[3] < alone:  # a step of a model: nothing to cut, nothing to share
            return _finished(_attend(query, key, value, request, dtype, None, operands.sinks), query.dtype)
        result = _allocate(query, value, request, dtype)
        products = query.size * key.shape[2]
        work = _work(query.shape, operands, request)
        if products >= SHARED:
            work = _split(work, request.group)
        share(partial(_solve, query, key, value, operands, request, result), work, products)
        return _finished(result, query.dtype)

    return run


def _sees_everything(request: AttentionRequest) -> bool:
    """Tell whether every query sees every key of every sequence, with nothing added to the scores."""
    positions = request.query_lengths or request.kv_lengths or request.query_offset or request.key_offset
    last = request.query_length == 1 and request.mask == MaskStructure(causal=True)
    return not (positions or request.bias or request.alibi) and (last or request.mask == MaskStructure())


def _allocate(query: Array, value: Keys, request: AttentionRequest, dtype: np.dtype[Any]) -> AttentionOutput:
    shape = query.shape[:3]
    return AttentionOutput(np.empty((*shape, value.shape[3]), dtype), np.empty(shape, dtype) if request.lse else None)


def _finished(result: AttentionOutput, dtype: np.dtype[Any]) -> AttentionOutput:
    return result if result.output.dtype == dtype else AttentionOutput(result.output.astype(dtype), result.lse)


def _attend(
    query: Array,
    key: Keys,
    value: Keys,
    request: AttentionRequest,
    dtype: np.dtype[Any],
    edit: Edit | None,
    sinks: Array | None,
) -> AttentionOutput:
    """Compute ``[b, h, T, E]`` and ``[b, h, T]`` in ``dtype`` for all keys given.

    ``edit`` adds to the scores ``[b, h, T, n]`` and hides keys, in place; without it every query sees every key.
    """
    batch, heads, rows, head_dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    folded = heads // kv_heads * rows
    scores = np.empty((batch, kv_heads, folded, keys), dtype)
    _multiply_keys(plain(query, dtype).reshape(batch, kv_heads, folded, head_dim), key, scores)
    multiply(scores, request.scale)
    if request.softcap is not None:
        cap(scores, request.softcap)
    if edit is not None:
        edit(scores.reshape(batch, heads, rows, keys))
    if sinks is not None:
        sinks = np.repeat(sinks.astype(dtype), rows).reshape(kv_heads, folded, 1)
    top, total = softmax(scores, sinks)
    output = _multiply_values(scores, value)
    lse = (top + np.log(total)).reshape(batch, heads, rows) if request.lse else None
    if edit is not None or not keys:
        total[total == 0] = 1
    np.divide(output, total, out=output)
    return AttentionOutput(output.reshape(batch, heads, rows, value_dim), lse)


def _multiply_keys(query: Array, key: Keys, scores: Array) -> None:
    """Write ``query [b, k, R, D]`` times ``key [b, k, n, D]`` into ``scores [b, k, R, n]``."""
    row_by_row = query.shape[2] <= _ROW_BY_ROW_KEYS
    for (sequences, heads, keys), array in blocks(key, _step(row_by_row or key.dtype != scores.dtype)):
        block, rows = plain(array, scores.dtype).swapaxes(-1, -2), query[sequences, heads]
        target = scores[sequences, heads, :, keys]
        if row_by_row:
            rows, block, target = rows[..., None, :], block[:, :, None], target[..., None, :]
        np.matmul(rows, block, out=target)


def _multiply_values(weights: Array, value: Keys) -> Array:
    """Give ``weights [b, k, R, n]`` times ``value [b, k, n, E]``."""
    shape, dtype = (*weights.shape[:3], value.shape[3]), weights.dtype
    total = np.empty(shape, dtype) if value.shape[2] else np.zeros(shape, dtype)
    row_by_row = weights.shape[2] <= _ROW_BY_ROW_VALUES
    for (sequences, heads, keys), array in blocks(value, _step(row_by_row or value.dtype != dtype)):
        block, part, sums = plain(array, dtype), weights[sequences, heads, :, keys], total[sequences, heads]
        if row_by_row:
            part, block, sums = part[..., None, :], block[:, :, None], sums[..., None, :]
        if keys.start == 0:
            np.matmul(part, block, out=sums)
        else:
            np.add(sums, np.matmul(part, block), out=sums)
    return total


def _step(small: bool) -> int:
    """Give the keys of a block: a ``small`` one where it is read again or converted."""
    return BLOCK if small else 4 * BLOCK


class Work(NamedTuple):
    """A part of a call, and what adds to its scores and hides keys; ``None`` where every query sees every key."""

    part: Part
    edit: Callable[[Part, Array], None] | None


def _solve(
    query: Array,
    key: Keys,
    value: Keys,
    operands: Operands,
    request: AttentionRequest,
    result: AttentionOutput,
    work: Work,
) -> None:
    """Compute the result for some sequences and heads."""
    sequences, heads, _, keys = work.part
    kv_heads = slice(heads.start // request.group, heads.stop // request.group)
    edit = None if work.edit is None else partial(work.edit, work.part)
    sinks = None if operands.sinks is None else operands.sinks[heads]
    arrays = query[sequences, heads], key[sequences, kv_heads, keys], value[sequences, kv_heads, keys]
    found = _attend(*arrays, request, result.output.dtype, edit, sinks)
    result.output[sequences, heads] = found.output
    if result.lse is not None:
        result.lse[sequences, heads] = found.lse


def _work(shape: tuple[int, ...], operands: Operands, request: AttentionRequest) -> Iterator[Work]:
    """Give one piece of work for all sequences, or one for each where their lengths or positions may differ."""
    batch, heads, rows, _ = shape
    differ = request.query_lengths or request.kv_lengths or request.query_offset or request.key_offset
    for start, stop in [(b, b + 1) for b in range(batch)] if differ else [(0, batch)]:
        keys, edit = _reach(request, operands, start)
        yield Work(Part(slice(start, stop), slice(0, heads), slice(0, rows), keys), edit)


def _reach(request: AttentionRequest, operands: Operands, b: int) -> tuple[slice, Callable[[Part, Array], None] | None]:
    """Give the keys that any query of a sequence sees by position, and what else is to be done to their scores."""
    bounds = operands.bounds(b)
    queries, length, *_ = bounds
    first, last, core = 0, length, [0, length]
    schedule = Schedule(request.mask, *bounds)
    if request.mask.positional and queries:
        first, last, *core = schedule.keys_of(0, queries)
    arrays = request.bias is not None or request.alibi or request.mask.documents or request.mask.dense
    if arrays or queries < request.query_length:
        return slice(first, last), partial(_edit, request=request, operands=operands)
    if core == [first, last]:
        return slice(first, last), None
    return slice(first, last), partial(_hide, hidden=schedule.hidden(0, queries, Tile(first, last, first, first)))


def _hide(_part: Part, scores: Array, hidden: Array) -> None:
    """Replace the scores ``[b, h, T, n]`` of ``hidden [T, n]``, in place."""
    np.copyto(scores, -np.inf, where=hidden)


def _edit(part: Part, scores: Array, request: AttentionRequest, operands: Operands) -> None:
    """Add bias and ALiBi to scores ``[b, h, T, n]`` and replace those of hidden keys, in place."""
    add_and_hide(scores, part_of(operands, part), request)


def _split(pieces: Iterator[Work], group: int) -> Iterator[Work]:
    """Cut work along sequences, or else key/value heads, into enough pieces for several threads."""
    for work in pieces:
        part = work.part
        if part.sequences.stop - part.sequences.start >= part.heads.stop // group:
            for sequences in _ranges(part.sequences, 1):
                yield work._replace(part=part._replace(sequences=sequences))
        else:
            for heads in _ranges(part.heads, group):
                yield work._replace(part=part._replace(heads=heads))


def _ranges(whole: slice, unit: int) -> Iterator[slice]:
    """Cut a range into about eight, of multiples of ``unit``."""
    step = unit * max(1, (whole.stop - whole.start) // (8 * unit))
    for start in range(whole.start, whole.stop, step):
        yield slice(start, min(start + step, whole.stop))
