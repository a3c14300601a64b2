"""The dense path: all scores at once, the definition in vectorised NumPy.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands
from attnkit_numpy.layout import Array, dtype_of, plain
from attnkit_numpy.scores import cap, multiply, softmax


def plan(request: AttentionRequest) -> Callable[[Array, Array, Array, Operands], AttentionOutput]:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    return partial(_attend, request=request)


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


def _finish(scores: Array, operands: Operands, request: AttentionRequest) -> None:
    """Turn products ``[B, H, T, S]`` into scores, in place."""
    multiply(scores, request.scale)
    if request.softcap is not None:
        cap(scores, request.softcap)
    bias = request.score_bias(operands)
    if bias is not None:
        np.add(scores, bias, out=scores)
    np.copyto(scores, -np.inf, where=np.logical_not(request.visible(operands)))
