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
        """Compute one call and remember it."""
        arrays = {"query": query, "key": key, "value": value, "bias": operands.bias, "sinks": operands.sinks}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        bias, sinks = (None if array is None else np.asarray(array) for array in (operands.bias, operands.sinks))
        query, key, value = map(np.asarray, (query, key, value))
        operands = operands._replace(bias=bias, sinks=sinks)
        result = super().attention(query, key, value, operands, request)
        self.last = Recorded(arrays, operands, request, result.output)
        return result

    def vjp(
        self, function: Callable[..., Sequence[Array]], arrays: Sequence[Array], cotangents: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        """Evaluate a function that makes one call, and go back through it."""
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
        """Compute once more what the way back starts from."""
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
        """Tell which rows are no padding, ``[B, 1, T, 1]``."""
        return self.valid(operands.query_lengths, operands.query_length)[:, None, :, None]

    def shown(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        """Tell which keys each row saw."""
        return self.visible(operands, request)

    def weights(self, scores: Array, lse: Array) -> Array:
        """Give the normalised weights ``[B, H, T, S]``."""
        return np.exp(scores - self.base(lse)[..., None])

    def delta(self, cotangent: Array, output: Array) -> Array:
        """Give the part of the cotangent along the output, ``[B, H, T]``."""
        return (cotangent * output).sum(axis=-1)

    def lse_part(self, cotangent: Any) -> Any:
        """Give what comes back through the log-sum-exp."""
        return cotangent

    def into_scores(self, way: Way) -> Array:
        """Give the gradient of the scores."""
        return way.weights * (self.reach(way) + way.above[..., None])

    def into_products(self, way: Way, scores: Array) -> Array:
        """Give the gradient of the scaled products, back through the soft-cap."""
        return np.where(way.shown, scores * self.cap_slope(way), 0)

    def reach(self, way: Way) -> Array:
        """Give the gradient of the weights."""
        return np.where(way.shown, way.cotangent @ way.value.swapaxes(-1, -2), 0)

    def cap_slope(self, way: Way) -> Any:
        """Give the derivative of the soft-cap, ``1 - tanh^2``."""
        return 1 if way.request.softcap is None else 1 - (way.capped / way.request.softcap) ** 2

    def scale_query(self, scale: float) -> float:
        """Give the factor of the gradient of the query."""
        return scale

    def group_sum(self, gradient: Array, request: ak.AttentionRequest) -> Array:
        """Sum over the query heads of a group."""
        batch, heads, *shape = gradient.shape
        return gradient.reshape(batch, request.num_kv_heads, heads // max(1, request.num_kv_heads), *shape).sum(axis=2)

    def bias_sum(self, gradient: Array, shape: tuple[int, ...]) -> Array:
        """Sum over the axes along which the bias was broadcast."""
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
        return gradient.sum(axis=axes, keepdims=True)

    def sink_sum(self, way: Way) -> Array:
        """Give the gradient of the sinks, ``[H]``."""
        sinks: Array = way.operands.sinks
        weights = np.exp(sinks.astype(way.request.accumulate)[:, None] - self.base(way.lse))
        return (weights * way.above).sum(axis=(0, 2))

    def convert(self, gradient: Array, leaf: Array) -> Array:
        """Round a gradient to the element type of its argument."""
        return gradient.reshape(leaf.shape).astype(leaf.dtype)


_NAMES = ("query", "key", "value")


def _name_of(leaf: Tracked, call: Recorded) -> str:
    """Tell which argument of a call an array is, or is a view of."""
    return next(name for name, array in call.arrays.items() if array is leaf or np.shares_memory(array, leaf))
