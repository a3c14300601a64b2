"""The dense path: all scores at once, the definition in array operations, with the products in cuBLAS.

It takes every request, float64 among them, and is what the kernels are compared with on a GPU. Nothing is read back to
the host. Of NaN and infinity in the values each row gets what it sees, and no more: in the product they count as zero,
and two products with marks in their place tell where they belong.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size, ``R = G * T`` folded rows.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Operands
from attnkit_cupy.runtime import Array

# Beyond these a factor is no ordinary float32 number: its product with another may be, so it is taken in float64.
_LEAST, _BIGGEST = 2.0**-100, 2.0**100


def attend(request: AttentionRequest, query: Array, key: Array, value: Array, operands: Operands) -> AttentionOutput:
    """Compute ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    xp = array_api_compat.array_namespace(query)
    with np.errstate(all="ignore"):
        return _attend(xp, request, query, key, value, placed(operands, xp))


def placed(operands: Operands, xp: Any) -> Operands:
    """Send operands that lie on the host to the device."""

    def place(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(place, item))
        return item if item is None or isinstance(item, int) else xp.asarray(item)

    return Operands(*map(place, operands))


def _attend(
    xp: Any, request: AttentionRequest, query: Array, key: Array, value: Array, operands: Operands
) -> AttentionOutput:
    dtype = getattr(xp, request.accumulate)
    batch, heads, rows, head_dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    folded = batch, kv_heads, request.group * rows

    shown = request.visible(operands, xp)
    shown = xp.broadcast_to(shown, (batch, heads, rows, keys))
    living = xp.reshape(xp.astype(query, dtype), (*folded, head_dim))
    products = xp.matmul(living, xp.matrix_transpose(xp.astype(key, dtype)))
    scores = _scores(xp, request, xp.reshape(products, (batch, heads, rows, keys)), operands)
    scores = xp.where(shown, scores, -xp.inf)
    sinks = None if operands.sinks is None else xp.astype(operands.sinks, dtype)[:, None, None]
    weights, top, total = _softmax(xp, scores, sinks)

    seen = xp.reshape(xp.astype(shown, dtype), (*folded, keys))
    output = _weighed(xp, xp.reshape(weights, (*folded, keys)), seen, xp.astype(value, dtype))
    output = xp.reshape(output, (batch, heads, rows, value_dim)) / xp.where(total == 0, 1, total)
    lse = xp.where(total == 0, -xp.inf, top + xp.log(total))[..., 0] if request.lse else None
    return AttentionOutput(xp.astype(output, query.dtype), lse)


def _scores(xp: Any, request: AttentionRequest, products: Array, operands: Operands) -> Array:
    """Turn products ``[B, H, T, S]`` into scores, as if every key were visible."""
    scores = _with_factor(xp, products, request.scale, lambda x: x * request.scale)
    if request.softcap is not None:
        cap = request.softcap
        scores = _with_factor(xp, scores, cap, lambda x: cap * xp.tanh(x / cap))
    added = request.score_bias(operands, xp)
    return scores if added is None else scores + added


def _with_factor(xp: Any, scores: Array, factor: float, apply: Any) -> Array:
    if _LEAST < abs(factor) < _BIGGEST:
        return apply(scores)
    return xp.astype(apply(xp.astype(scores, xp.float64)), scores.dtype)


def _softmax(xp: Any, scores: Array, sinks: Array | None) -> tuple[Array, Array, Array]:
    """Give weights ``exp(score - top)``, the largest score (0 in a row without keys) and the sum of the weights."""
    if scores.shape[-1]:
        top = xp.max(scores, axis=-1, keepdims=True)
    else:
        top = xp.full((*scores.shape[:-1], 1), -xp.inf, dtype=scores.dtype)
    if sinks is not None:
        top = xp.maximum(top, sinks)
    top = xp.where(top == -xp.inf, 0, top)
    weights = xp.exp(scores - top)
    total = xp.sum(weights, axis=-1, keepdims=True)
    return weights, top, total if sinks is None else total + xp.exp(sinks - top)


def _weighed(xp: Any, weights: Array, seen: Array, value: Array) -> Array:
    """Give ``weights [B, K, R, S]`` times ``value [B, K, S, E]``, where values that are ``seen`` alone may be odd."""
    output = xp.matmul(weights, xp.where(xp.isfinite(value), value, 0))
    lost = xp.isnan(value)
    above = xp.matmul(seen, xp.astype(lost | (value == xp.inf), value.dtype)) > 0
    below = xp.matmul(seen, xp.astype(lost | (value == -xp.inf), value.dtype)) > 0
    return output + xp.where(above, math.inf, 0) + xp.where(below, -math.inf, 0)  # both: NaN
