"""A small correct backend in plain NumPy, cut into one method for each thing that can be got wrong.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

import attnkit as ak
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.selftest.softmax import Softmax
from attnkit_conformance.selftest.visibility import Visibility
from attnkit_conformance.subject import Subject

Array = Any
EVERYTHING = ak.Capabilities(
    dtypes=frozenset({"float16", "bfloat16", "float32", "float64"}),
    gqa=True, value_dim=True, window=True, prefix=True, chunked=True, documents=True, dense=True,
    bias=True, alibi=True, softcap=True, sinks=True, lengths=True, offsets=True, lse=True, kv_dtype=True,
    batch_invariant=True,
    numerics={"float64": "float64", "float32": "strict-fp32", "float16": "fp32P-16", "bfloat16": "fp32P-16"},
)  # fmt: skip


class Plain(Visibility, Softmax, ak.Backend):
    """Everything but gradients, in the accumulation type from the first product to the last division."""

    name = "plain"
    declared: ClassVar[ak.Capabilities] = EVERYTHING
    hidden = -np.inf

    def capabilities(self) -> ak.Capabilities:
        """Declare everything but gradients."""
        return self.declared

    def from_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    def to_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    @np.errstate(all="ignore")
    def attention(
        self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest
    ) -> ak.AttentionOutput:
        """Compute one call."""
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
        """Take the arrays as they were given."""
        return query, key, value

    # Heads

    def key_head(self, head: Array, request: ak.AttentionRequest) -> Array:
        """Give the head of the keys that each query head reads."""
        return head // request.group

    def value_head(self, head: Array, request: ak.AttentionRequest) -> Array:
        """Give the head of the values that each query head reads."""
        return self.key_head(head, request)

    # Scores

    def scores(self, query: Array, key: Array, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        """Give the scores ``[B, H, T, S]`` in the order of A2."""
        capped = self.cap(self.scaled_products(query, key, request), request)
        return capped + self.bias(operands, request) + self.alibi(operands, request)

    def scaled_products(self, query: Array, key: Array, request: ak.AttentionRequest) -> Array:
        """Multiply queries with keys, and scale."""
        return self.scale(request) * self.products(query, key)

    def products(self, query: Array, key: Array) -> Array:
        """Multiply queries with keys."""
        return query @ key.swapaxes(-1, -2)

    def scale(self, request: ak.AttentionRequest) -> float:
        """Give the scale."""
        return request.scale

    def cap(self, scores: Array, request: ak.AttentionRequest) -> Array:
        """Bend the scores to what the soft-cap allows."""
        return scores if request.softcap is None else request.softcap * np.tanh(scores / request.softcap)

    def bias(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        """Give the bias in the accumulation type."""
        return 0 if operands.bias is None else operands.bias.astype(request.accumulate)

    def alibi(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        """Give what ALiBi adds."""
        if operands.alibi is None:
            return 0
        rows, keys = operands.positions()
        slopes = operands.alibi[:, :, None, None].astype(request.accumulate)
        return -slopes * np.abs(rows - keys).astype(request.accumulate)

    def sinks(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        """Give the sinks as scores, ``[H, 1, 1]``."""
        return None if operands.sinks is None else operands.sinks.astype(request.accumulate)[:, None, None]

    def hide(self, scores: Array, shown: Array, request: ak.AttentionRequest) -> Array:
        """Give what a row does not see a score of ``-inf``."""
        del request
        return np.where(shown, scores, self.hidden).astype(scores.dtype)

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        """Round the output to the element type of the query."""
        del query
        return output.astype(np.dtype(request.dtype))


class Flash(Plain):
    """A correct backend that rounds its weights to 16 bits where the query has as many, and says so."""

    name = "flash"
    tile = 256
    declared = replace(EVERYTHING, numerics={**EVERYTHING.numerics, "float16": "fa-16", "bfloat16": "fa-16"})
    rounded: Any = None

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        """Compute one call, with weights of the element type of the query."""
        self.rounded = query.dtype if query.dtype.itemsize == 2 else None
        return super().attention(query, key, value, operands, request)

    def weigh(self, weights: Array, values: Array) -> Array:
        """Round the weights before the product; their sum is not rounded."""
        return super().weigh(weights if self.rounded is None else self.round(weights), values)

    def round(self, weights: Array) -> Array:
        """Round to 16 bits."""
        return weights.astype(self.rounded).astype(weights.dtype)


def unregistered(backend: ak.Backend) -> Subject:
    """Put a backend that no registry knows under test."""
    return Subject(Harness(backend.name, backend, backend))
