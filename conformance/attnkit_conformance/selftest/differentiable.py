"""The plain backend with gradients, cut into one method for each thing that can be got wrong on the way back.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import attnkit as ak
from attnkit_conformance.harness.tracking import Tracked, requiring_grad
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain


class Recorded(NamedTuple):
    """One call of ``attention``."""

    arrays: dict[str, Array]
    operands: ak.Operands
    request: ak.AttentionRequest
    output: Array


class Way(NamedTuple):
    """What the way back starts from, in the accumulation type; arrays have as many heads as the query."""

    query: Array
    key: Array
    value: Array
    capped: Array
    shown: Array
    weights: Array
    lse: Array
    cotangent: Array
    above: Array
    operands: ak.Operands
    request: ak.AttentionRequest


class Differentiable(Plain):
    """Remembers its last call, and takes the gradients of the one that a function makes."""

    name = "differentiable"
    declared = replace(EVERYTHING, grad=True)

    last: Recorded

    def attention(
        self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest
    ) -> ak.AttentionOutput:
        arrays = {"query": query, "key": key, "value": value, "bias": operands.bias, "sinks": operands.sinks}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        operands = operands._replace(**{name: np.asarray(arrays[name]) for name in ("bias", "sinks") if name in arrays})
        result = super().attention(*map(np.asarray, (query, key, value)), operands, request)
        self.last = Recorded(arrays, operands, request, result.output)
        return result

    def vjp(
        self, function: Callable[..., Sequence[Array]], arrays: Sequence[Array], cotangents: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        leaves = [requiring_grad(array) for array in arrays]
        results = function(*leaves)
        gradients = self.backward(self.last, *cotangents)
        return results, [self.convert(gradients[_name_of(leaf, self.last)], leaf) for leaf in leaves]

    @np.errstate(all="ignore")
    def backward(self, call: Recorded, cotangent: Array, lse_cotangent: Any = 0) -> dict[str, Array]:
        """Give the gradients of all arguments by name."""
        way = self.way(call, cotangent, lse_cotangent)
        scores = self.into_scores(way)
        products = self.into_products(way, scores)
        scale = way.request.scale
        gradients = {
            "query": self.scale_query(scale) * (products @ way.key),
            "key": self.group_sum(scale * (products.swapaxes(-1, -2) @ way.query), way.request),
            "value": self.group_sum(way.weights.swapaxes(-1, -2) @ way.cotangent, way.request),
        }
        if way.operands.bias is not None:
            gradients["bias"] = self.bias_sum(scores, way.operands.bias.shape)
        if way.operands.sinks is not None:
            gradients["sinks"] = self.sink_sum(way)
        return gradients

    def way(self, call: Recorded, cotangent: Array, lse_cotangent: Any) -> Way:
        request, operands = call.request, call.operands
        query, key, value = (np.asarray(call.arrays[name]).astype(request.accumulate) for name in _NAMES)
        rows = self.live_rows(operands)
        query, cotangent = np.where(rows, query, 0), np.where(rows, cotangent.astype(request.accumulate), 0)
        alive = self.valid(operands.kv_lengths, operands.key_length)[:, None, :, None]
        heads = self.key_head(np.arange(request.num_heads), request)
        key, value = np.where(alive, key, 0)[:, heads], np.where(alive, value, 0)[:, heads]
        capped = self.cap(request.scale * (query @ key.swapaxes(-1, -2)), request)
        shown = np.broadcast_to(self.shown(operands, request), capped.shape)
        added = self.bias(operands, request) + self.alibi(operands, request)
        scores = np.where(shown, capped + added, -np.inf).astype(capped.dtype)
        _, lse = self.softmax(scores, value, self.sinks(operands, request))
        above = self.lse_part(lse_cotangent) - self.delta(cotangent, call.output.astype(request.accumulate))
        above = np.where(np.isneginf(lse), 0, above)
        weights = self.weights(scores, lse)
        return Way(query, key, value, capped, shown, weights, lse, cotangent, above, operands, request)

    def live_rows(self, operands: ak.Operands) -> Array:
        return self.valid(operands.query_lengths, operands.query_length)[:, None, :, None]

    def shown(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        return self.visible(operands, request)

    def weights(self, scores: Array, lse: Array) -> Array:
        return np.exp(scores - self.base(lse)[..., None])

    def delta(self, cotangent: Array, output: Array) -> Array:
        return (cotangent * output).sum(axis=-1)

    def lse_part(self, cotangent: Any) -> Any:
        return cotangent

    def into_scores(self, way: Way) -> Array:
        return way.weights * (self.reach(way) + way.above[..., None])

    def into_products(self, way: Way, scores: Array) -> Array:
        return np.where(way.shown, scores * self.cap_slope(way), 0)

    def reach(self, way: Way) -> Array:
        return np.where(way.shown, way.cotangent @ way.value.swapaxes(-1, -2), 0)

    def cap_slope(self, way: Way) -> Any:
        return 1 if way.request.softcap is None else 1 - (way.capped / way.request.softcap) ** 2

    def scale_query(self, scale: float) -> float:
        return scale

    def group_sum(self, gradient: Array, request: ak.AttentionRequest) -> Array:
        batch, heads, *shape = gradient.shape
        return gradient.reshape(batch, request.num_kv_heads, heads // max(1, request.num_kv_heads), *shape).sum(axis=2)

    def bias_sum(self, gradient: Array, shape: tuple[int, ...]) -> Array:
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
        return gradient.sum(axis=axes, keepdims=True)

    def sink_sum(self, way: Way) -> Array:
        sinks = way.operands.sinks.astype(way.request.accumulate)[:, None]
        return (np.exp(sinks - self.base(way.lse)) * way.above).sum(axis=(0, 2))

    def convert(self, gradient: Array, leaf: Array) -> Array:
        return gradient.reshape(leaf.shape).astype(leaf.dtype)


_NAMES = ("query", "key", "value")


def _name_of(leaf: Tracked, call: Recorded) -> str:
    """Tell which argument of a call an array is, or is a view of."""
    return next(name for name, array in call.arrays.items() if array is leaf or np.shares_memory(array, leaf))
