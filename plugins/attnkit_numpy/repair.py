"""The slow path for NaN and infinity: a key or value that a row does not see leaves no trace in it (contract A8).

A weight of 0 times a value of NaN is NaN, so hidden values that are not finite reach the output of a fast path. That is
seen in the output; the call is then repeated without those keys, and rows that do see one are computed one by one.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands
from attnkit_numpy import dense
from attnkit_numpy.scores import Array

Run = Callable[[Array, Array, Array, Operands, AttentionRequest], AttentionOutput]
_ROWS = 256


def is_finite(output: Array) -> bool:
    """Tell whether everything is finite; may say no for large finite numbers."""
    return bool(np.isfinite(output.sum()))


def repair(
    found: AttentionOutput,
    run: Run,
    query: Array,
    key: Array,
    value: Array,
    operands: Operands,
    request: AttentionRequest,
) -> AttentionOutput:
    """Give what ``run`` found for the other arguments, uncontaminated by keys and values that a row does not see."""
    bad = ~(np.isfinite(key).all(axis=-1) & np.isfinite(value).all(axis=-1))
    if not bad.any():
        return found
    key_rest, value_rest = (np.where(bad[..., None], array.dtype.type(0), array) for array in (key, value))
    clean = run(query, key_rest, value_rest, operands, request)
    for b, h in np.ndindex(query.shape[:2]):
        kv_head = h // request.group
        for start in range(0, query.shape[2], _ROWS):
            part = _part(operands, b, h, start, min(start + _ROWS, query.shape[2]))
            shown = request.visible(part)[0, 0]
            for i in np.flatnonzero((shown & bad[b, kv_head]).any(axis=-1)).tolist():
                keys, row = np.flatnonzero(shown[i]), start + i
                bias = request.score_bias(_part(operands, b, h, row, row + 1))
                bias = None if bias is None else np.broadcast_to(bias, (1, 1, 1, key.shape[2]))[..., keys]
                alone = dense.attend(
                    query[b : b + 1, h : h + 1, row : row + 1],
                    key[b, kv_head, keys][None, None],
                    value[b, kv_head, keys][None, None],
                    Operands(1, len(keys), bias=bias, sinks=_cut(operands.sinks, h)),
                    _alone(request),
                )
                _store(clean, (b, h, row), alone)
    return clean


def _alone(request: AttentionRequest) -> AttentionRequest:
    """Describe one row with the keys that it sees: no mask, no positions, everything added is in the bias."""
    return AttentionRequest(
        *request[:4], 1, 1, 1, 1, 0, *request[9:11], scale=request.scale, softcap=request.softcap, lse=request.lse
    )


def _store(result: AttentionOutput, place: tuple[int, int, int], row: AttentionOutput) -> None:
    result.output[place] = row.output[0, 0, 0]
    if result.lse is not None and row.lse is not None:
        result.lse[place] = row.lse[0, 0, 0]


def _part(operands: Operands, b: int, h: int, start: int, stop: int) -> Operands:
    """Cut out what belongs to rows ``[start, stop)`` of one head of one sequence."""
    queries, keys, query_position, key_position = operands.bounds(b)
    return Operands(
        stop - start,
        operands.key_length,
        bias=None if operands.bias is None else _rows(operands.bias, b, h, start, stop),
        alibi=None if operands.alibi is None else _cut(_cut(operands.alibi, b), h, 1),
        query_lengths=np.array([min(max(queries - start, 0), stop - start)]),
        kv_lengths=np.array([keys]),
        query_offset=np.array([query_position + start]),
        key_offset=np.array([key_position]),
        documents=tuple((_cut_ids(q, b)[..., start:stop], _cut_ids(k, b)) for q, k in operands.documents),
        dense=tuple(_rows(array, b, h, start, stop) for array in operands.dense),
    )


def _rows(array: Array, b: int, h: int, start: int, stop: int) -> Array:
    """Cut ``[1, 1, rows, S]`` out of what broadcasts to ``[B, H, T, S]``."""
    array = _cut(_cut(array, b), h, 1)
    return array if array.shape[2] == 1 else array[:, :, start:stop]


def _cut(array: Array | None, index: int, axis: int = 0) -> Array:
    """Keep one index of an axis, which stays; an axis of length 1 broadcasts."""
    if array is None or array.shape[axis] == 1:
        return array
    return array[(slice(None),) * axis + (slice(index, index + 1),)]


def _cut_ids(ids: Array, b: int) -> Array:
    return ids if ids.ndim == 1 else ids[b]
