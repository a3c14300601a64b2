"""Faults of company, memory, history and symmetry: what tables of single features let pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.harness.local import Harness, Thing
from attnkit_conformance.selftest.faults import fault, harnessed
from attnkit_conformance.selftest.faulty_caches import cache_fault
from attnkit_conformance.selftest.plain import Array, Plain
from attnkit_conformance.selftest.refusal_mutants import refusing, without


class SinksLost(Plain):
    """Drops the sinks where keys have an offset."""

    def sinks(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        return None if request.key_offset else super().sinks(operands, request)


class GroupedWindow(Plain):
    """Counts one key more in a window of grouped heads with lengths."""

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        if request.mask.left is not None and request.group > 1 and request.kv_lengths:
            request = request._replace(mask=request.mask._replace(left=request.mask.left + 1))
        return super().visible(operands, request)


class CapLost(Plain):
    """Drops the soft-cap beside a bias; declares no lengths."""

    declared = without("lengths", "documents")

    def cap(self, scores: Array, request: ak.AttentionRequest) -> Array:
        return scores if request.bias else super().cap(scores, request)


def first_reason(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
    return ak.Backend.unsupported(self, request, path)[:1]


class RefusesLate(Plain):
    """Says that it takes a call, and refuses it when it comes."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        if request.softcap and request.dtype == "float16":
            reason = ak.Reason("softcap", "softcap", "absent", "given")
            raise ak.UnsupportedError("not here", {self.name: (reason,)})
        return super().attention(query, key, value, operands, request)


class TwoTiles(Plain):
    """Takes the first sequence by other tiles than the rest, which it says it does not."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        output, lse = super().attention(query, key, value, operands, request)
        self.tile = 3
        first = super().attention(query, key, value, operands, request)
        del self.tile
        both = ((of_first[:1], of_all[1:]) for of_first, of_all in zip(first, (output, lse), strict=True))
        return ak.AttentionOutput(*map(np.concatenate, both))


def recent(self: Plain, argument: Array) -> Array:
    return np.exp(argument) * (1 + 1e-4 * np.arange(argument.shape[-1])).astype(argument.dtype)


def rounded_up(self: Plain, query: Array, key: Array) -> Array:
    return np.nextafter(query, np.inf) @ key.swapaxes(-1, -2)


def in_one_scale(self: Plain, weights: Array, values: Array) -> Array:
    top = np.maximum(np.abs(values).max(axis=-1, keepdims=True, initial=0), 1e-30)
    return (weights * top.swapaxes(-1, -2)) @ (values / top)


class LowBias(Plain):
    """Takes a bias of ``-inf`` for one that is very low."""

    def bias(self, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        bias = super().bias(operands, request)
        return np.where(bias == -np.inf, bias.dtype.type(-8), bias) if request.bias else bias

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        return super().visible(operands._replace(bias=None), request)


class HalfSinks(Plain):
    """Counts half of a sink."""

    def sinks(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        sinks = super().sinks(operands, request)
        return None if sinks is None else (sinks - np.log(2)).astype(sinks.dtype)


def from_the_start(array: Array) -> Array:
    """Read from the start of the memory that a view is of."""
    base = array if array.base is None else array.base
    if base.size < array.size or min(array.strides, default=0) < 0:
        return array
    return np.lib.stride_tricks.as_strided(base.reshape(-1), array.shape, array.strides)


class ByAddress(Plain):
    """Knows a call again by where its arrays lie."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        known = self.__dict__.setdefault("known", {})
        place = (request, key.shape, *(array.__array_interface__["data"][0] for array in (query, key, value)))
        if place not in known:
            known[place] = super().attention(query, key, value, operands, request)
        return ak.AttentionOutput(known[place].output.copy(), known[place].lse)


class ByFirstElement(Plain):
    """Knows a call again by its shapes and the first numbers of its arrays."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        known = self.__dict__.setdefault("known", {})
        start = (request, key.shape, *(float(array.flat[0]) for array in (query, key, value) if array.size))
        if start not in known:
            known[start] = super().attention(query, key, value, operands, request)
        return ak.AttentionOutput(known[start].output.copy(), known[start].lse)


class Unwritten(Plain):
    """Makes its results in memory that others have let go of, as an allocator does, and writes no zeros."""

    def from_numpy(self, array: Array) -> Array:
        self.__dict__.setdefault("pool", {})[array.nbytes] = array.tobytes()
        return super().from_numpy(array)

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        done = super().finish(output, query, request)
        memory = self.__dict__.setdefault("pool", {}).get(done.nbytes, bytes(done.nbytes))
        result = np.frombuffer(memory, done.dtype).reshape(done.shape).copy()
        result[done != 0] = done[done != 0]
        return result


class TwoBuffers(Plain):
    """Gives one of two buffers in turn."""

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        done = super().finish(output, query, request)
        kept = self.__dict__.setdefault("kept", {}).setdefault((done.shape, done.dtype), [])
        if len(kept) < 2:
            kept.append(np.empty_like(done))
        kept.append(kept.pop(0))
        kept[-1][...] = done
        return kept[-1]


class BeforeTile(Plain):
    """Drops the last key where one more would fill a tile of 64."""

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        keys = operands.key_length
        shown = super().visible(operands, request)
        return shown & (np.arange(keys) < keys - 1) if keys % 64 == 63 else shown


class HighestLse(Harness):
    """Gives the highest log-sum-exp of the parts for that of the whole."""

    def merge(self, parts: Sequence[Sequence[Thing]]) -> tuple[Thing, ...]:
        output, _ = super().merge(parts)
        return output, np.max([lse for _, lse in parts], axis=0)


class InOne(Harness):
    """Takes packed sequences for one."""

    def packed(self, arrays: Sequence[Thing], options: Mapping[str, Any]) -> Thing:
        query, key, value, *_ = (np.asarray(array).swapaxes(0, 1)[None] for array in arrays[:3])
        (output,) = self.attention([query, key, value], options)
        return output[0].swapaxes(0, 1)


class Limitless(Harness):
    """Does not look at the limits of packed sequences."""

    def packed(self, arrays: Sequence[Thing], options: Mapping[str, Any]) -> Thing:
        kept = {name: option for name, option in options.items() if name not in ("max_q", "max_k")}
        return super().packed(arrays, kept)


class CutUndone(ak.KVCache):
    """Takes the lengths from before a cut where sequences are reordered right after it."""

    _cut: Any = (None, None)

    def truncate(self, length: Any) -> None:
        before = self.counters
        super().truncate(length)
        self._cut = before, self.counters

    def reorder(self, indices: Any) -> None:
        before, after = self._cut
        undone = after is self.counters
        super().reorder(indices)
        if undone:
            self._commit(before.arranged(np.asarray(indices).tolist()))


class FifthLost(ak.CacheLayer):
    """Loses the keys of the fifth append."""

    _appends = 0

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        self._appends += 1
        super().append(0 * key if self._appends == 5 else key, value, lengths=lengths)


PROBE_MUTANTS = [
    fault("sinks_lost_beside_an_offset", "TestCombinations::test_applied_or_refused_together", SinksLost),
    fault("grouped_window_with_lengths", "TestCombinations::test_applied_or_refused_together", GroupedWindow),
    fault("cap_lost_beside_a_bias", "TestCombinations::test_whatever_is_declared", CapLost),
    fault("first_reason_only", "TestAgreement", declared=without("bias", "sinks", "lengths"),
          unsupported=first_reason),
    fault("refused_late", "TestAgreement", RefusesLate),
    fault("refused_in_company", "TestAgreement",
          unsupported=refusing("alibi", lambda request: request.alibi and request.sinks)),
    fault("later_keys_weigh_more", "TestLaws::test_keys", exp=recent),
    fault("first_sequence_by_other_tiles", "TestLaws::test_rows_and_sequences", TwoTiles),
    fault("heads_dealt_out", "TestAverages::test_heads_are_not_dealt_out",
          key_head=lambda self, head, request: head % request.num_kv_heads),
    fault("query_rounded_up", "TestLaws::test_features", products=rounded_up),
    fault("columns_share_a_scale", "TestLaws::test_values", weigh=in_one_scale),
    fault("weights_beyond_one", "TestAverages::test_constant_values",
          divide=lambda self, output, total: np.float32(1.01) * Plain.divide(self, output, total)),
    fault("bias_of_inf_is_low", "TestLaws::test_masks", LowBias),
    fault("half_a_sink", "TestLaws::test_terms_of_the_scores", HalfSinks),
    fault("storage_offset_ignored", "TestPacked::test_each_sequence_as_alone",
          read=lambda self, query, key, value: tuple(map(from_the_start, (query, key, value)))),
    harnessed("highest_lse_merged", "TestMergeLaws", HighestLse),
    harnessed("packed_in_one", "TestPacked::test_neighbours_leave_no_trace", InOne),
    harnessed("packed_limits_ignored", "TestPacked::test_limits", Limitless),
    fault("remembered_by_address", "TestMemory::test_new_contents_of_the_same_arrays", ByAddress),
    fault("remembered_by_first_elements", "TestMemory::test_one_element_changed", ByFirstElement),
    fault("zeros_left_unwritten", "TestMemory::test_memory_is_written_before_it_is_read", Unwritten),
    fault("two_buffers_in_turn", "TestMemory::test_results_last", TwoBuffers),
    fault("last_key_before_a_tile_dropped", "TestSearch", BeforeTile),
    cache_fault("cut_undone_by_reorder", "TestCacheMachine::test_histories", CutUndone),
    cache_fault("fifth_append_lost", "TestCacheMachine::test_long_histories", layer=FifthLost),
]  # fmt: skip
