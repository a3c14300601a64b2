"""Faults in what a call does besides: memory, types, reproducibility, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain


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


CALLS = [
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


def without(*codes: str) -> ak.Capabilities:
    return replace(EVERYTHING, **dict.fromkeys(codes, False))


def silent(*codes: str) -> Any:
    """Refuse less than what is not declared."""

    def unsupported(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        return [reason for reason in ak.Backend.unsupported(self, request, path) if reason.code not in codes]

    return unsupported


def refusing(code: str, used: Any) -> Any:
    """Refuse what is declared."""

    def unsupported(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        reasons = ak.Backend.unsupported(self, request, path)
        return [*reasons, ak.Reason(code, code, "absent", "given")] if used(request) else reasons

    return unsupported


def renamed(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
    return [replace(reason, code="unsupported") for reason in ak.Backend.unsupported(self, request, path)]


class GivesUp(Plain):
    """Gives up in the middle of a call."""

    declared = without("sinks")
    unsupported = silent("sinks")

    def sinks(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        if operands.sinks is not None:
            raise NotImplementedError("sinks")
        return None


def unwrapped(self: Plain, *arrays: Any) -> Any:
    return tuple(np.asarray(getattr(array, "_array", array)) for array in arrays)


REFUSALS = [
    fault("undeclared_dropped", "TestApplied", declared=without("alibi"), unsupported=silent("alibi"),
          alibi=lambda self, operands, request: 0),
    fault("undeclared_applied", "TestApplied", declared=without("softcap"), unsupported=silent("softcap")),
    fault("undeclared_gqa", "TestGroupedHeads", declared=without("gqa"), unsupported=silent("gqa")),
    fault("undeclared_dtype", "TestNumerics", declared=replace(EVERYTHING, dtypes=frozenset({"float32"})),
          unsupported=silent("dtypes")),
    fault("undeclared_head_dim", "TestNumerics::test_head_sizes", unsupported=silent("head_dims"),
          declared=replace(EVERYTHING, head_dims=ak.Sizes(8, 128, 8))),
    fault("undeclared_key_length", "TestOneHot", declared=replace(EVERYTHING, max_key_length=1024),
          unsupported=silent("max_key_length")),
    fault("undeclared_lse", "TestMerge", declared=without("lse"), unsupported=silent("lse")),
    fault("undeclared_lengths_in_a_cache", "TestCacheEquivalence::test_ragged_appends",
          declared=without("lengths"), unsupported=silent("lengths")),
    fault("undeclared_type_of_a_cache", "TestOwnership::test_queries_of_another_type",
          declared=without("kv_dtype"), unsupported=silent("kv_dtype")),
    fault("declared_refused", "TestApplied",
          unsupported=refusing("window", lambda request: request.mask.left is not None)),
    fault("declared_refused_as_a_path", "TestApplied",
          unsupported=refusing("path", lambda request: request.mask.chunks)),
    fault("declared_refused_together", "TestApplied",
          unsupported=refusing("dense", lambda request: request.mask.dense and request.mask.documents)),
    fault("foreign_arrays_taken", "TestRefused", unsupported=silent("libraries"), read=unwrapped),
    fault("gradients_detached", "TestRefused", unsupported=silent("grad")),
    fault("refused_by_another_error", "TestApplied", GivesUp),
    fault("refused_without_its_code", "TestApplied", declared=without("bias"), unsupported=renamed),
    fault("poison_declared_masked", "TestHiddenKeys", declared=replace(EVERYTHING, poison="masked")),
]  # fmt: skip

CALL_MUTANTS = [*CALLS, *REFUSALS]
