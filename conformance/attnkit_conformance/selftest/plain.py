"""A small correct backend in plain NumPy, cut into one method for each thing that can be got wrong.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``w`` keys of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.subject import Subject

Array = np.ndarray[Any, Any]
EVERYTHING = ak.Capabilities(
    dtypes=frozenset({"float16", "bfloat16", "float32", "float64"}),
    gqa=True, value_dim=True, window=True, prefix=True, chunked=True, documents=True, dense=True,
    bias=True, alibi=True, softcap=True, sinks=True, lengths=True, offsets=True, lse=True, kv_dtype=True,
    batch_invariant=True,
    numerics={"float64": "float64", "float32": "strict-fp32", "float16": "fp32P-16", "bfloat16": "fp32P-16"},
)  # fmt: skip


class Plain(ak.Backend):
    name = "plain"
    declared = EVERYTHING
    hidden = -np.inf
    tile = 16

    def capabilities(self) -> ak.Capabilities:
        return self.declared

    def from_numpy(self, array: Array) -> Array:
        return np.array(array)

    def to_numpy(self, array: Array) -> Array:
        return np.array(array)

    @np.errstate(all="ignore")
    def attention(
        self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest
    ) -> ak.AttentionOutput:
        query, key, value = (array.astype(request.accumulate) for array in self.read(query, key, value))
        alive = self.valid(operands.kv_lengths, key.shape[2])[:, None, :, None]
        key, value = np.where(alive, key, 0), np.where(alive, value, 0)
        heads = np.arange(request.num_heads)
        key, value = key[:, self.key_head(heads, request)], value[:, self.value_head(heads, request)]
        scores = self.scores(query, key, operands, request)
        shown = np.broadcast_to(self.visible(operands, request), scores.shape)
        output, lse = self.softmax(self.hide(scores, shown, request), value, self.sinks(operands, request))
        return ak.AttentionOutput(self.finish(output, query, request), lse.astype(request.accumulate))

    def read(self, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
        return query, key, value

    # Heads

    def key_head(self, head: Array, request: ak.AttentionRequest) -> Array:
        return head // request.group

    def value_head(self, head: Array, request: ak.AttentionRequest) -> Array:
        return self.key_head(head, request)

    # Scores

    def scores(self, query: Array, key: Array, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        capped = self.cap(self.scale(request) * self.products(query, key), request)
        return capped + self.bias(operands, request) + self.alibi(operands, request)

    def products(self, query: Array, key: Array) -> Array:
        return query @ key.swapaxes(-1, -2)

    def scale(self, request: ak.AttentionRequest) -> float:
        return request.scale

    def cap(self, scores: Array, request: ak.AttentionRequest) -> Array:
        return scores if request.softcap is None else request.softcap * np.tanh(scores / request.softcap)

    def bias(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        return 0 if operands.bias is None else operands.bias.astype(request.accumulate)

    def alibi(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        if operands.alibi is None:
            return 0
        rows, keys = operands.positions()
        slopes = operands.alibi[:, :, None, None].astype(request.accumulate)
        return -slopes * np.abs(rows - keys).astype(request.accumulate)

    def sinks(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        return None if operands.sinks is None else operands.sinks.astype(request.accumulate)[:, None, None]

    # Visibility

    def hide(self, scores: Array, shown: Array, request: ak.AttentionRequest) -> Array:
        return np.where(shown, scores, self.hidden).astype(scores.dtype)

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        mask, (p, j) = request.mask, self.positions(operands)
        shown = self.valid(operands.kv_lengths, operands.key_length)[:, None, None, :]
        shown = shown & self.valid(operands.query_lengths, operands.query_length)[:, None, :, None]
        if mask.causal:
            shown = shown & self.causal(p, j)
        if mask.left is not None or mask.right is not None:
            shown = shown & self.window(p, j, mask.left, mask.right)
        if mask.prefix is not None:
            shown = shown & self.prefix(p, j, mask.prefix)
        for size in mask.chunks:
            shown = shown & self.chunked(p, j, size)
        for ids_q, ids_k in operands.documents:
            shown = shown & self.documents(np.atleast_2d(ids_q), np.atleast_2d(ids_k))
        for array in operands.dense:
            shown = shown & self.dense(array)
        return shown if operands.bias is None else shown & (operands.bias != -np.inf)

    def positions(self, operands: ak.Operands) -> tuple[Array, Array]:
        return operands.positions()

    def valid(self, lengths: Array | None, size: int) -> Array:
        return np.ones((1, size), bool) if lengths is None else np.arange(size) < lengths[:, None]

    def causal(self, p: Array, j: Array) -> Array:
        return j <= p

    def window(self, p: Array, j: Array, left: int | None, right: int | None) -> Array:
        shown = np.ones(np.broadcast_shapes(p.shape, j.shape), bool)
        if left is not None:
            shown &= p - left < j
        return shown if right is None else shown & (j <= p + right)

    def prefix(self, p: Array, j: Array, n: int) -> Array:
        return (j < n) | (j <= p)

    def chunked(self, p: Array, j: Array, n: int) -> Array:
        return p // n == j // n

    def documents(self, ids_q: Array, ids_k: Array) -> Array:
        return ids_q[:, None, :, None] == ids_k[:, None, None, :]

    def dense(self, array: Array) -> Array:
        return array

    # Softmax, tile by tile

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]``."""
        output = np.zeros((*scores.shape[:3], value.shape[3]), scores.dtype)
        top = np.full((*scores.shape[:3], 1), -np.inf, scores.dtype)
        total = np.zeros_like(top)
        if sinks is not None:
            top[...], total[...] = sinks, sinks > -np.inf
        for part, values in self.tiles(scores, value):
            old, top = top, self.maximum(top, part)
            base = self.base(top)
            weights, shrink = np.exp(part - base), np.exp(old - base)
            total = total * self.rescale_total(shrink) + weights.sum(axis=-1, keepdims=True)
            output = output * self.rescale_output(shrink) + self.weigh(weights, values)
        return output / np.where(total > 0, total, 1), self.lse(top, total)

    def tiles(self, scores: Array, value: Array) -> Iterator[tuple[Array, Array]]:
        for start in range(0, scores.shape[3], self.tile):
            yield scores[..., start : start + self.tile], value[:, :, start : start + self.tile]

    def maximum(self, top: Array, part: Array) -> Array:
        return np.maximum(top, part.max(axis=-1, keepdims=True))

    def base(self, top: Array) -> Array:
        return np.where(np.isfinite(top), top, 0)

    def weigh(self, weights: Array, values: Array) -> Array:
        return weights @ values

    def rescale_output(self, shrink: Array) -> Array:
        return shrink

    def rescale_total(self, shrink: Array) -> Array:
        return shrink

    def lse(self, top: Array, total: Array) -> Array:
        return (self.base(top) + np.log(total))[..., 0]

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        return output.astype(np.dtype(request.dtype))


class Flash(Plain):
    """A correct backend that rounds its weights to 16 bits where the query has as many, and says so."""

    name = "flash"
    tile = 256
    declared = replace(EVERYTHING, numerics={**EVERYTHING.numerics, "float16": "fa-16", "bfloat16": "fa-16"})
    rounded: Any = None

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        self.rounded = query.dtype if query.dtype.itemsize == 2 else None
        return super().attention(query, key, value, operands, request)

    def weigh(self, weights: Array, values: Array) -> Array:
        rounded = weights if self.rounded is None else weights.astype(self.rounded).astype(weights.dtype)
        return super().weigh(rounded, values)


def unregistered(backend: ak.Backend) -> Subject:
    """Put a backend that no registry knows under test."""
    return Subject(Harness(backend.name, backend, backend))
