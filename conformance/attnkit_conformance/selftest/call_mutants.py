"""Faults in what a call does besides: memory, types, reproducibility."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.plain import Array, Plain


class Buffered(Plain):
    """Gives a view of one internal buffer."""

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        done = super().finish(output, query, request)
        buffers = self.__dict__.setdefault("buffers", {})
        kept = buffers.setdefault((done.shape, done.dtype), np.empty_like(done))
        kept[...] = done
        return kept


class Stale(Plain):
    """Keeps what its output buffer held where the result is zero."""

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        done = super().finish(output, query, request)
        buffers = self.__dict__.setdefault("buffers", {})
        kept = buffers.setdefault((done.shape, done.dtype), np.ones_like(done))
        kept[done != 0] = done[done != 0]
        return kept.copy()


class Remembering(Plain):
    """Remembers results by the shapes of a call."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        known = self.__dict__.setdefault("known", {})
        if (request, key.shape) not in known:
            known[request, key.shape] = super().attention(query, key, value, operands, request)
        output, lse = known[request, key.shape]
        return ak.AttentionOutput(output.copy(), lse)


class InPlace(Plain):
    """Scales the query where it lies."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        if query.flags.writeable:
            query *= np.asarray(request.scale, query.dtype)
            request = request._replace(scale=1.0)
        return super().attention(query, key, value, operands, request)


class BiasInPlace(Plain):
    """Adds up its terms where the bias lies."""

    def bias(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        if operands.bias is not None and operands.bias.flags.writeable:
            operands.bias[...] *= 2
            return operands.bias.astype(request.accumulate) / 2
        return super().bias(operands, request)


class Alias(Plain):
    """Gives the value itself where there is a single key."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        result = super().attention(query, key, value, operands, request)
        same = value.shape == result.output.shape and key.shape[2] == 1 and np.array_equal(value, result.output)
        return ak.AttentionOutput(value, result.lse) if same else result


class Noisy(Plain):
    """Gives other bits each time, all within the bound."""

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        noise = np.random.default_rng().choice([1 - 2e-7, 1, 1 + 2e-7], output.shape)
        return super().finish(output * noise.astype(output.dtype), query, request)


class BatchTile(Plain):
    """Chooses its tile by the batch, which it says it does not."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        self.tile = 3 if len(query) == 1 else 16
        return super().attention(query, key, value, operands, request)


def packed(array: Array) -> Array:
    """Read memory as if it were contiguous."""
    if array.flags.c_contiguous or array.base is None or array.base.size < array.size:
        return array
    return array.base.reshape(-1)[: array.size].reshape(array.shape)


CALL_MUTANTS = [
    fault("view_of_a_buffer", "TestArguments", Buffered),
    fault("stale_buffer", "TestEmpty", Stale),
    fault("results_remembered", "TestArguments", Remembering),
    fault("query_modified", "TestArguments", InPlace),
    fault("bias_modified", "TestArguments", BiasInPlace),
    fault("value_aliased", "TestArguments", Alias),
    fault("strides_ignored", "TestArguments",
          read=lambda self, query, key, value: (packed(query), packed(key), packed(value))),
    fault("read_only_misread", "TestArguments",
          read=lambda self, query, key, value: (query if query.flags.writeable else 0 * query, key, value)),
    fault("wrong_dtype", "TestNumerics", finish=lambda self, output, query, request: output.astype(np.float64)),
    fault("accumulation_dtype", "TestNumerics", finish=lambda self, output, query, request: output),
    fault("wrong_shape", "TestNumerics",
          finish=lambda self, output, query, request: Plain.finish(self, output, query, request)[..., :1]),
    fault("noise", "TestDeterminism", Noisy),
    fault("batch_dependent", "TestDeterminism", BatchTile),
]  # fmt: skip
