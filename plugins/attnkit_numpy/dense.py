"""The dense path: all scores at once, the definition in vectorised NumPy.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size.
"""

from __future__ import annotations

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands
from attnkit_numpy.scores import Array, cap, multiply, softmax


def attend(
    query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest
) -> AttentionOutput:
    """Compute ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    batch, heads, rows, _ = query.shape
    _, kv_heads, keys, value_dim = value.shape
    folded = (batch, kv_heads, request.group * rows)
    query, key, value = (array.astype(request.accumulate, copy=False) for array in (query, key, value))
    scores = np.matmul(query.reshape(*folded, query.shape[3]), key.swapaxes(-1, -2)).reshape(batch, heads, rows, keys)
    _finish(scores, operands, request)
    sinks = None if operands.sinks is None else operands.sinks.astype(request.accumulate)[:, None, None]
    top, total = softmax(scores, sinks)
    output = np.matmul(scores.reshape(*folded, keys), value).reshape(batch, heads, rows, value_dim)
    lse = (top + np.log(total))[..., 0] if request.lse else None
    np.divide(output, np.where(total == 0, 1, total), out=output)
    return AttentionOutput(output, lse)


def _finish(scores: Array, operands: Operands, request: AttentionRequest) -> None:
    multiply(scores, request.scale)
    if request.softcap is not None:
        cap(scores, request.softcap)
    bias = request.score_bias(operands)
    if bias is not None:
        np.add(scores, bias, out=scores)
    np.copyto(scores, -np.inf, where=np.logical_not(request.visible(operands)))
