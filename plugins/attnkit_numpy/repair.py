"""The slow path for NaN and infinity: a key or value that a row does not see leaves no trace in it (contract A8).

A weight of 0 times a value of NaN is NaN, so hidden values that are not finite reach the output of a fast path. That is
seen in the output; the call is then repeated without those keys, and rows that do see one are computed one by one.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, MaskStructure, Operands
from attnkit_numpy import dense
from attnkit_numpy.layout import Array
from attnkit_numpy.parts import Part, part_of

Run = Callable[[Array, Array, Array, Operands], AttentionOutput]
_ROWS = 256


def is_finite(output: Array) -> bool:
    """Tell whether everything is finite; may say no for large finite numbers."""
    wide = output.dtype if output.dtype.itemsize >= 4 else np.float32
    return math.isfinite(np.add.reduce(output, axis=None, dtype=wide))


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
    bad = ~np.asarray(np.isfinite(key).all(axis=-1) & np.isfinite(value).all(axis=-1))
    if not bad.any():
        return found
    key_rest, value_rest = (np.where(bad[..., None], array.dtype.type(0), array) for array in (key, value))
    clean = run(query, key_rest, value_rest, operands)
    for part in _parts(query.shape, key.shape[2]):
        b, kv_head = part.sequences.start, part.heads.start // request.group
        shown = request.visible(part_of(operands, part))[0, 0]
        for i in np.flatnonzero((shown & bad[b, kv_head]).any(axis=-1)).tolist():
            row = part._replace(rows=slice(part.rows.start + i, part.rows.start + i + 1))
            keys = np.flatnonzero(shown[i])
            alone = _solve(query[row[:3]], key[b, kv_head, keys], value[b, kv_head, keys], keys, operands, request, row)
            clean.output[row[:3]] = alone.output
            if clean.lse is not None and alone.lse is not None:
                clean.lse[row[:3]] = alone.lse
    return clean


def _parts(shape: tuple[int, ...], keys: int) -> Iterator[Part]:
    """Cut a call into blocks of rows of one head each."""
    for b, h in np.ndindex(shape[:2]):
        for start in range(0, shape[2], _ROWS):
            rows = slice(start, min(start + _ROWS, shape[2]))
            yield Part(slice(b, b + 1), slice(h, h + 1), rows, slice(0, keys))


def _solve(
    query: Array, key: Array, value: Array, keys: Array, operands: Operands, request: AttentionRequest, row: Part
) -> AttentionOutput:
    """Compute one row from the keys that it sees, ``key [n, D]`` and ``value [n, E]``: all visible, all else a bias."""
    bias = request.score_bias(part_of(operands, row))
    if bias is not None:
        bias = np.broadcast_to(bias, (1, 1, 1, row.keys.stop))[..., keys]
    alone = request._replace(batch=1, num_heads=1, num_kv_heads=1, query_length=1, mask=MaskStructure())
    sinks = None if operands.sinks is None else operands.sinks[row.heads]
    own = Operands(1, len(keys), bias=bias, sinks=sinks)
    return dense.plan(alone)(query, key[None, None], value[None, None], own)
