"""The dense path: all scores at once, the definition in vectorised NumPy.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands
from attnkit_numpy.layout import Array, dtype_of, plain
from attnkit_numpy.parts import Part, part_of
from attnkit_numpy.scores import add_and_hide, cap, multiply, softmax
from attnkit_numpy.threads import single_threaded

# Elements in the products of a head below which OpenBLAS uses no threads, so that there is no need to hold it to one.
_ALONE = 250_000

# Scores that are held at a time; larger batches are cut.
_MOST = 2_000_000


def plan(request: AttentionRequest) -> Callable[[Array, Array, Array, Operands], AttentionOutput]:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""

    def run(query: Array, key: Array, value: Array, operands: Operands) -> AttentionOutput:
        batch, heads, rows, head_dim = query.shape
        scores = heads * rows * key.shape[2]
        if batch * scores <= _MOST and request.group * rows * key.shape[2] * head_dim < _ALONE:
            return _attend(query, key, value, operands, request)
        step = max(1, _MOST // max(1, scores))
        with single_threaded():
            parts = [slice(start, min(start + step, batch)) for start in range(0, batch, step)]
            return _joined([_attend_part(query, key, value, operands, request, part) for part in parts])

    return run


def _attend(query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest) -> AttentionOutput:
    dtype = dtype_of(request.accumulate)
    batch, heads, rows, head_dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    folded = (batch, kv_heads, request.group * rows)

    products = np.matmul(plain(query, dtype).reshape(*folded, head_dim), plain(key, dtype).swapaxes(-1, -2))
    scores = products.reshape(batch, heads, rows, keys)
    _finish(scores, operands, request)
    sinks = None if operands.sinks is None else operands.sinks.astype(dtype)[:, None, None]
    top, total = softmax(scores, sinks)

    lse = (top + np.log(total))[..., 0] if request.lse else None
    total[total == 0] = 1
    output = np.matmul(scores.reshape(*folded, keys), plain(value, dtype)).reshape(batch, heads, rows, value_dim)
    np.divide(output, total, out=output)
    return AttentionOutput(output.astype(query.dtype, copy=False), lse)


def _attend_part(
    query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest, sequences: slice
) -> AttentionOutput:
    """Compute some sequences of a batch."""
    heads, rows, keys = (slice(0, size) for size in (*query.shape[1:3], key.shape[2]))
    own = part_of(operands, Part(sequences, heads, rows, keys))._replace(sinks=operands.sinks)
    return _attend(query[sequences], key[sequences], value[sequences], own, request)


def _joined(results: list[AttentionOutput]) -> AttentionOutput:
    outputs, lses = [result.output for result in results], [result.lse for result in results if result.lse is not None]
    return AttentionOutput(np.concatenate(outputs), np.concatenate(lses) if lses else None)


def _finish(scores: Array, operands: Operands, request: AttentionRequest) -> None:
    """Turn products ``[B, H, T, S]`` into scores, in place."""
    multiply(scores, request.scale)
    if request.softcap is not None:
        cap(scores, request.softcap)
    add_and_hide(scores, operands, request)
