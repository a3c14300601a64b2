"""The slow path for NaN and infinity: a key or value that a row does not see leaves no trace in it (contract A8).

A weight of 0 times a value of NaN is NaN, so hidden values that are not finite reach the output of a fast path. That is
seen in the output. The call is then repeated with 0 in place of what is not finite, which is right for rows that see
none of it; the first result is right for rows that see all of it; rows between are mended.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``n`` rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

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


class Call(NamedTuple):
    """The arguments of a call: ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]`` and the rest."""

    query: Array
    key: Array
    value: Array
    operands: Operands
    request: AttentionRequest


def repair(found: AttentionOutput, run: Run, call: Call) -> AttentionOutput:
    """Give what ``run`` found for a call, uncontaminated by keys and values that a row does not see."""
    if np.isfinite(found.output).all():
        return found
    bad = ~np.asarray(np.isfinite(call.key).all(axis=-1) & np.isfinite(call.value).all(axis=-1))
    clean = found
    if bad.any():
        clean = run(call.query, _zeroed(call.key), _zeroed(call.value), call.operands)
    for part in _parts(call.query.shape, call.key.shape[2]):
        _mend(clean, found, call, part, bad[part.sequences.start, part.heads.start // call.request.group])
    return clean


def _zeroed(array: Array) -> Array:
    return np.where(np.isfinite(array), array, array.dtype.type(0))


def _parts(shape: tuple[int, ...], keys: int) -> Iterator[Part]:
    """Cut a call into blocks of rows of one head each."""
    for b, h in np.ndindex(shape[:2]):
        for start in range(0, shape[2], _ROWS):
            rows = slice(start, min(start + _ROWS, shape[2]))
            yield Part(slice(b, b + 1), slice(h, h + 1), rows, slice(0, keys))


def _mend(clean: AttentionOutput, found: AttentionOutput, call: Call, part: Part, bad: Array) -> None:
    """Write into ``clean`` the rows of a block that see some of the keys in ``bad [S]``, or overflowed on their own."""
    b, h, rows = part.sequences.start, part.heads.start, part.rows
    output = clean.output[b, h, rows]
    odd = ~np.isfinite(output).all(axis=1) & np.isfinite(call.query[b, h, rows]).all(axis=1)
    if not (bad.any() or odd.any()):
        return
    shown = np.broadcast_to(call.request.visible(part_of(call.operands, part))[0, 0], (len(output), len(bad)))
    sees, misses = (shown & bad).any(axis=1), (~shown & bad).any(axis=1)
    for new, old in zip(clean, found, strict=True):
        if new is not None and old is not None:
            new[b, h, rows][sees & ~misses] = old[b, h, rows][sees & ~misses]
    infinite = np.isinf(call.key[b, h // call.request.group]).any(axis=1)
    infinite |= np.isinf(call.value[b, h // call.request.group]).any(axis=1)
    closer = (odd & ~sees) | (sees & misses & (shown & infinite).any(axis=1))
    for i in np.flatnonzero(closer).tolist():
        _solve_row(clean, call, part._replace(rows=slice(rows.start + i, rows.start + i + 1)), np.flatnonzero(shown[i]))
    _spread_nan(clean, call, part, shown, np.flatnonzero(sees & misses))


def _spread_nan(clean: AttentionOutput, call: Call, part: Part, shown: Array, between: Array) -> None:
    """Let NaN take its course in the rows ``between``: in a key it takes all of a row, in a value its column."""
    b, h, rows = part.sequences.start, part.heads.start, part.rows
    key, value = (np.isnan(array[b, h // call.request.group]) for array in (call.key, call.value))
    seen = shown[between].astype(np.float32)  # a count of NaN as one product
    output = clean.output[b, h, rows]
    output[between] = np.where(seen @ value.astype(np.float32) > 0, np.nan, output[between])
    lost = between[(shown[between] & key.any(axis=1)).any(axis=1)]
    output[lost] = np.nan
    if clean.lse is not None:
        clean.lse[b, h, rows][lost] = np.nan


def _solve_row(clean: AttentionOutput, call: Call, row: Part, keys: Array) -> None:
    """Compute one row from the ``keys [n]`` that it sees: all of them visible, all else a bias."""
    place, kv_head = row[:3], row.heads.start // call.request.group
    bias = call.request.score_bias(part_of(call.operands, row))
    if bias is not None:
        bias = np.broadcast_to(bias, (1, 1, 1, row.keys.stop))[..., keys]
    alone = call.request._replace(batch=1, num_heads=1, num_kv_heads=1, query_length=1, mask=MaskStructure())
    sinks = None if call.operands.sinks is None else call.operands.sinks[row.heads]
    key, value = (array[row.sequences, kv_head : kv_head + 1, keys] for array in (call.key, call.value))
    found = dense.plan(alone)(call.query[place], key, value, Operands(1, len(keys), bias=bias, sinks=sinks))
    clean.output[place] = found.output
    if clean.lse is not None and found.lse is not None:
        clean.lse[place] = found.lse
