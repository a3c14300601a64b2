"""Backends that are wrong on purpose, one fault each, and the class of checks that must catch it.

A fault is an override of one small method of ``Plain``; the faults of caches are in ``cache_mutants``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from plain_backend import EVERYTHING, Array, Plain, Unregistered

import attnkit as ak
from attnkit_conformance.subject import Subject


@dataclass(frozen=True)
class Mutant:
    """A fault: its name, the class of checks that must catch it, and what makes the faulty backend."""

    name: str
    killer: str
    subject: Callable[[], Subject]


def fault(name: str, killer: str, parent: type[Plain] = Plain, **members: Any) -> Mutant:
    kind = type(name.title(), (parent,), {"name": name.replace("_", "-"), **members})
    return Mutant(name, killer, lambda: Unregistered(kind()))


def shifted(operands: ak.Operands, by: int) -> tuple[Array, Array]:
    rows, keys = operands.positions()
    return rows + by, keys


def from_row_zero(operands: ak.Operands) -> tuple[Array, Array]:
    """Top-left alignment: query 0 stands on key 0, whatever the lengths."""
    start = 0 if operands.query_offset is None else operands.query_offset[:, None, None, None]
    keys = operands.positions()[1]
    return np.arange(operands.query_length)[:, None] + start, keys


def first(array: Array, axis: int) -> Array:
    """Read only index 0 of an axis."""
    return array[(slice(None),) * axis + (slice(0, 1),)]


CAUSAL = [
    fault("causal_loose", "TestAttendance", causal=lambda self, p, j: j <= p + 1),
    fault("causal_strict", "TestAttendance", causal=lambda self, p, j: j < p),
    fault("causal_topleft", "TestAttendance", positions=lambda self, operands: from_row_zero(operands)),
    fault("causal_ignored", "TestHiddenKeys", causal=lambda self, p, j: p == p),
    fault("causal_leaks_next_key", "TestHiddenKeys", causal=lambda self, p, j: j <= p + 1),
    fault("causal_within_tile_only", "TestHiddenKeys", causal=lambda self, p, j: (j <= p) | (j // 16 > p // 16)),
    fault("window_wide", "TestAttendance", window=lambda self, p, j, l, r: Plain.window(self, p, j, l and l + 1, r)),
    fault("window_narrow", "TestOneHot", window=lambda self, p, j, l, r: Plain.window(self, p, j, l and l - 1, r)),
    fault("window_right_wide", "TestHiddenKeys",
          window=lambda self, p, j, l, r: Plain.window(self, p, j, l, None if r is None else r + 1)),
    fault("window_ignored", "TestHiddenKeys", window=lambda self, p, j, l, r: p == p),
    fault("window_symmetric", "TestAttendance", window=lambda self, p, j, l, r: Plain.window(self, p, j, l, l)),
    fault("window_no_offset", "TestAttendance",
          window=lambda self, p, j, l, r: Plain.window(self, p - p.min() if p.size else p, j, l, r)),
    fault("prefix_wide", "TestAttendance", prefix=lambda self, p, j, n: (j <= n) | (j <= p)),
    fault("prefix_narrow", "TestAttendance", prefix=lambda self, p, j, n: (j < n - 1) | (j <= p)),
    fault("prefix_ignored", "TestOneHot", prefix=lambda self, p, j, n: j <= p),
    fault("chunk_late", "TestAttendance", chunked=lambda self, p, j, n: (p + 1) // n == (j + 1) // n),
    fault("chunk_wide", "TestHiddenKeys", chunked=lambda self, p, j, n: abs(p // n - j // n) <= 1),
    fault("chunk_no_offset", "TestAttendance",
          chunked=lambda self, p, j, n: (p - p.min() if p.size else p) // n == (j - j.min() if j.size else j) // n),
    fault("documents_ignored", "TestHiddenKeys", documents=lambda self, a, b: np.True_),
    fault("documents_batch0", "TestAttendance",
          documents=lambda self, a, b: Plain.documents(self, first(a, 0), first(b, 0))),
    fault("documents_ordered", "TestAttendance", documents=lambda self, a, b: a[:, None, :, None] >= b[:, None, None, :]),
    fault("dense_inverted", "TestAttendance", dense=lambda self, array: ~array),
    fault("dense_batch0", "TestAttendance", dense=lambda self, array: first(array, 0)),
    fault("dense_head0", "TestHiddenKeys", dense=lambda self, array: first(array, 1)),
    fault("dense_ignored", "TestHiddenKeys", dense=lambda self, array: np.True_),
    fault("offsets_ignored", "TestAttendance",
          positions=lambda self, operands: operands._replace(query_offset=None, key_offset=None).positions()),
    fault("key_offset_ignored", "TestMerge",
          positions=lambda self, operands: operands._replace(key_offset=None).positions()),
]  # fmt: skip

LENGTHS = [
    fault("lengths_ignored", "TestPadding", valid=lambda self, n, size: np.ones((1, size), bool)),
    fault("lengths_plus_one", "TestPadding",
          valid=lambda self, n, size: Plain.valid(self, None if n is None else n + 1, size)),
    fault("lengths_minus_one", "TestAttendance",
          valid=lambda self, n, size: Plain.valid(self, None if n is None else n - 1, size)),
    fault("lengths_batch0", "TestAttendance",
          valid=lambda self, n, size: Plain.valid(self, None if n is None else n[:1], size)),
    fault("lengths_longest", "TestPadding",
          valid=lambda self, n, size: Plain.valid(self, None if n is None or not n.size else np.full_like(n, n.max()), size)),
]  # fmt: skip

HEADS = [
    fault("gqa_modulo", "TestGroupedHeads", key_head=lambda self, h, request: h % request.num_kv_heads),
    fault("gqa_head0", "TestGroupedHeads", key_head=lambda self, h, request: 0 * h),
    fault("gqa_key_modulo", "TestOneHot", key_head=lambda self, h, request: h % request.num_kv_heads,
          value_head=lambda self, h, request: h // request.group),
    fault("value_next_head", "TestGroupedHeads",
          value_head=lambda self, h, request: (h // request.group + 1) % request.num_kv_heads),
]  # fmt: skip

SCORES = [
    fault("scale_none", "TestNumerics", scale=lambda self, request: 1.0),
    fault("scale_one_over_d", "TestNumerics", scale=lambda self, request: 1 / request.head_dim),
    fault("scale_from_value", "TestNumerics", scale=lambda self, request: request.value_dim**-0.5),
    fault("scale_argument_ignored", "TestApplied", scale=lambda self, request: request.head_dim**-0.5),
    fault("scale_magnitude", "TestOptions", scale=lambda self, request: abs(request.scale)),
    fault("scale_zero_is_default", "TestOptions", scale=lambda self, request: request.scale or request.head_dim**-0.5),
    fault("softcap_ignored", "TestApplied", cap=lambda self, scores, request: scores),
    fault("softcap_clips", "TestOptions",
          cap=lambda self, scores, request: scores if request.softcap is None
          else scores.clip(-request.softcap, request.softcap)),
    fault("softcap_before_scale", "TestOptions",
          cap=lambda self, scores, request: request.scale * Plain.cap(self, scores / (request.scale or 1), request)),
    fault("softcap_after_mask", "TestAttendance",
          hide=lambda self, scores, shown, request: Plain.cap(self, Plain.hide(self, scores, shown, request), request)
          if request.softcap is not None else Plain.hide(self, np.maximum(scores, -1e4), shown, request).clip(-1e4)),
    fault("softcap_last", "TestOptions",
          scores=lambda self, query, key, operands, request: self.cap(
              self.scale(request) * self.products(query, key) + self.bias(operands, request) + self.alibi(operands), request)),
    fault("bias_ignored", "TestApplied", bias=lambda self, operands, request: 0),
    fault("bias_scaled", "TestOptions",
          bias=lambda self, operands, request: request.scale * Plain.bias(self, operands, request)),
    fault("bias_head0", "TestOptions",
          bias=lambda self, operands, request: 0 if operands.bias is None
          else first(operands.bias, 1).astype(request.accumulate)),
    fault("bias_batch0", "TestOptions",
          bias=lambda self, operands, request: 0 if operands.bias is None
          else first(operands.bias, 0).astype(request.accumulate)),
    fault("bias_clipped", "TestOptions",
          bias=lambda self, operands, request: np.clip(Plain.bias(self, operands, request), -1e4, None)),
    fault("alibi_sign", "TestOptions", alibi=lambda self, operands: -Plain.alibi(self, operands)),
    fault("alibi_head0", "TestOptions",
          alibi=lambda self, operands: Plain.alibi(self, operands) if operands.alibi is None
          else Plain.alibi(self, operands._replace(alibi=np.broadcast_to(operands.alibi[:, :1], operands.alibi.shape)))),
    fault("alibi_signed_distance", "TestOptions",
          alibi=lambda self, operands: 0 if operands.alibi is None else
          -operands.alibi[:, :, None, None] * np.subtract(*operands.positions()).astype(np.float32)),
    fault("alibi_no_offset", "TestOptions",
          alibi=lambda self, operands: Plain.alibi(self, operands._replace(query_offset=None))),
    fault("sink_ignored", "TestApplied", sinks=lambda self, operands, request: None),
    fault("sink_head0", "TestOptions",
          sinks=lambda self, operands, request: None if operands.sinks is None
          else first(Plain.sinks(self, operands, request), 0)),
]  # fmt: skip


class LateSink(Plain):
    """Adds the sink to the normaliser at the end, without a look at the maximum."""

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        output, lse = super().softmax(scores, value, None)
        if sinks is None:
            return output, lse
        top = self.base(scores.max(axis=-1, keepdims=True, initial=-np.inf))
        total = np.exp(lse[..., None] - top)
        whole = total + np.exp(sinks - top)
        return output * total / np.where(whole > 0, whole, 1), (top + np.log(whole))[..., 0]


class Unsunk(Plain):
    """Leaves the sink out of the log-sum-exp."""

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        return super().softmax(scores, value, sinks)[0], super().softmax(scores, value, None)[1]


class FirstTile(Plain):
    """Takes the maximum of the first tile for that of all."""

    def maximum(self, top: Array, part: Array) -> Array:
        return np.where(np.isneginf(top), super().maximum(top, part), top)


class Padded(Plain):
    """Fills the last tile up with keys of zeros, and counts them."""

    def tiles(self, scores: Array, value: Array) -> Iterator[tuple[Array, Array]]:
        for part, values in super().tiles(scores, value):
            missing = self.tile - part.shape[-1]
            yield (np.pad(part, ((0, 0),) * 3 + ((0, missing),)), np.pad(values, ((0, 0),) * 2 + ((0, missing), (0, 0))))


class WholeTiles(Plain):
    """Drops the keys after the last whole tile."""

    def tiles(self, scores: Array, value: Array) -> Iterator[tuple[Array, Array]]:
        for part, values in super().tiles(scores, value):
            if part.shape[-1] == self.tile or scores.shape[-1] < self.tile:
                yield part, values


class Overlapping(Plain):
    """Counts the last key of a tile once more with the next."""

    def tiles(self, scores: Array, value: Array) -> Iterator[tuple[Array, Array]]:
        for start in range(0, scores.shape[3], self.tile):
            stop = start + self.tile + 1
            yield scores[..., start:stop], value[:, :, start:stop]


class EmptyRows(Plain):
    """Gives rows without keys what ``fill`` says."""

    fill: Callable[[Array], Any]

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        output, lse = super().softmax(scores, value, sinks)
        empty = np.isneginf(scores).all(axis=-1, keepdims=True)
        return np.where(empty, type(self).fill(value), output), lse


def half(array: Array) -> Array:
    return array.astype(np.float16).astype(array.dtype)


def brain(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16).astype(array.dtype)


def skip_last_row(self: Plain, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
    output[:, :, 1:][:, :, -1:] = 0
    return Plain.finish(self, output, query, request)


SOFTMAX = [
    fault("rescale_output_missing", "TestNumerics", rescale_output=lambda self, shrink: 1),
    fault("rescale_total_missing", "TestNumerics", rescale_total=lambda self, shrink: 1),
    fault("max_of_first_tile", "TestNumerics", FirstTile),
    fault("max_not_subtracted", "TestShift", base=lambda self, top: np.zeros_like(top)),
    fault("tail_tile_dropped", "TestAttendance", WholeTiles),
    fault("pad_keys_counted", "TestAttendance", Padded),
    fault("boundary_key_twice", "TestAttendance", Overlapping),
    fault("head_dim_tail_dropped", "TestNumerics",
          products=lambda self, q, k: Plain.products(self, q[..., : q.shape[3] // 16 * 16], k[..., : k.shape[3] // 16 * 16])),
    fault("sentinel_1e4", "TestEmpty", hidden=-1e4),
    fault("sentinel_1e4_hides_too_little", "TestHiddenKeys", hidden=-1e4),
    fault("sentinel_20", "TestAttendance", hidden=-20.0),
    fault("sink_not_in_max", "TestOptions", LateSink),
    fault("sink_not_in_lse", "TestEmpty", Unsunk),
    fault("lse_base_2", "TestOptions", lse=lambda self, top, total: Plain.lse(self, top, total) / np.log(2)),
    fault("lse_without_max", "TestOptions", lse=lambda self, top, total: np.log(total)[..., 0]),
    fault("lse_of_empty_row_is_0", "TestEmpty", lse=lambda self, top, total: np.nan_to_num(Plain.lse(self, top, total), neginf=0)),
    fault("empty_row_nan", "TestEmpty", EmptyRows, fill=lambda value: np.nan),
    fault("empty_row_mean", "TestEmpty", EmptyRows,
          fill=lambda value: value.mean(axis=2, keepdims=True) if value.shape[2] else 0),
    fault("last_row_skipped", "TestNumerics", finish=skip_last_row),
    fault("batch0_broadcast", "TestAttendance", read=lambda self, q, k, v: (q, *(k[[0] * len(k)], v[[0] * len(v)]))),
    fault("mean_of_values", "TestOneHot", hide=lambda self, scores, shown, request: Plain.hide(self, 0 * half(scores).clip(-1, 1), shown, request)),
    fault("no_keys_crashes", "TestEmpty", maximum=lambda self, top, part: Plain.maximum(self, top, part),
          base=lambda self, top: top[..., :1].reshape(len(top), -1, *top.shape[2:]) * 0 + Plain.base(self, top)),
]  # fmt: skip

ARITHMETIC = [
    fault("bf16_operands", "TestNumerics", read=lambda self, q, k, v: (brain(q), brain(k), v)),
    fault("half_scores", "TestNumerics", products=lambda self, q, k: half(Plain.products(self, q, k))),
    fault("half_weights", "TestNumerics",
          tiles=lambda self, s, v: ((half(part), values) for part, values in Plain.tiles(self, s, v))),
    fault("bf16_totals", "TestNumerics", rescale_total=lambda self, shrink: brain(shrink)),
    fault("half_output", "TestNumerics", finish=lambda self, o, q, request: Plain.finish(self, half(o), q, request)),
    fault("float32_for_float64", "TestNumerics",
          read=lambda self, q, k, v: (q, k, v.astype(np.float32)),),
    fault("truncated_output", "TestNumerics",
          finish=lambda self, o, q, request: Plain.finish(self, (o.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32), q, request)),
]  # fmt: skip


class Buffered(Plain):
    """Gives a view of one internal buffer."""

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        done = super().finish(output, query, request)
        kept = self.__dict__.setdefault("buffers", {}).setdefault((done.shape, done.dtype), np.empty_like(done))
        kept[...] = done
        return kept


class Stale(Plain):
    """Keeps what its output buffer held where the result is zero."""

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        done = super().finish(output, query, request)
        kept = self.__dict__.setdefault("buffers", {}).setdefault((done.shape, done.dtype), np.ones_like(done))
        kept[done != 0] = done[done != 0]
        return kept.copy()


class Memory(Plain):
    """Remembers results by the shapes of a call."""

    def attention(self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest) -> ak.AttentionOutput:
        known = self.__dict__.setdefault("known", {})
        if (request, key.shape) not in known:
            known[request, key.shape] = super().attention(query, key, value, operands, request)
        output, lse = known[request, key.shape]
        return ak.AttentionOutput(output.copy(), lse)


class InPlace(Plain):
    """Scales the query where it lies."""

    def attention(self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest) -> ak.AttentionOutput:
        if query.flags.writeable:
            query *= np.asarray(request.scale, query.dtype)
            request = request._replace(scale=1.0)
        return super().attention(query, key, value, operands, request)


class Alias(Plain):
    """Gives the value itself where there is a single key."""

    def attention(self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest) -> ak.AttentionOutput:
        result = super().attention(query, key, value, operands, request)
        same = value.shape == result.output.shape and key.shape[2] == 1 and np.array_equal(value, result.output)
        return ak.AttentionOutput(value, result.lse) if same else result


def packed(array: Array) -> Array:
    """Read memory as if it were contiguous."""
    if array.flags.c_contiguous or array.base is None or array.base.size < array.size:
        return array
    return array.base.reshape(-1)[: array.size].reshape(array.shape)


class Noisy(Plain):
    """Gives other bits each time, all within the bound."""

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        noise = np.random.default_rng().choice([1 - 2e-7, 1, 1 + 2e-7], output.shape)
        return super().finish(output * noise.astype(output.dtype), query, request)


class BatchTile(Plain):
    """Chooses its tile by the batch, which it says it does not."""

    def attention(self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest) -> ak.AttentionOutput:
        self.tile = 3 if len(query) == 1 else 16
        return super().attention(query, key, value, operands, request)


CALLS = [
    fault("view_of_buffer", "TestArguments", Buffered),
    fault("stale_buffer", "TestEmpty", Stale),
    fault("results_remembered", "TestArguments", Memory),
    fault("query_modified", "TestArguments", InPlace),
    fault("value_aliased", "TestArguments", Alias),
    fault("strides_ignored", "TestArguments", read=lambda self, q, k, v: (packed(q), packed(k), packed(v))),
    fault("read_only_refused", "TestArguments",
          read=lambda self, q, k, v: (q, k, v) if q.flags.writeable else (0 * q, k, v)),
    fault("wrong_dtype", "TestNumerics", finish=lambda self, o, q, request: o.astype(np.float64)),
    fault("accumulation_dtype", "TestNumerics", finish=lambda self, o, q, request: o),
    fault("wrong_shape", "TestNumerics", finish=lambda self, o, q, request: Plain.finish(self, o, q, request)[..., :1]),
    fault("noise", "TestDeterminism", Noisy),
    fault("batch_dependent", "TestDeterminism", BatchTile),
]


def without(*codes: str) -> ak.Capabilities:
    return replace(EVERYTHING, **dict.fromkeys(codes, False))


def silent(*codes: str) -> Any:
    """Refuse less than what is not declared."""
    return lambda self, request, path=None: [r for r in ak.Backend.unsupported(self, request, path) if r.code not in codes]


def refusing(code: str, option: str) -> Any:
    """Refuse an option that is declared."""

    def unsupported(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        used = getattr(request, option, None) or getattr(request.mask, option, None)
        reasons = ak.Backend.unsupported(self, request, path)
        return [*reasons, ak.Reason(code, option, "absent", "given")] if used else reasons

    return unsupported


class OtherError(Plain):
    """Gives up in the middle of a call."""

    declared = without("sinks")
    unsupported = silent("sinks")

    def sinks(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        if operands.sinks is not None:
            raise NotImplementedError("sinks")
        return None


def renamed(self: Plain, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
    return [replace(reason, code="unsupported") for reason in ak.Backend.unsupported(self, request, path)]


REFUSALS = [
    fault("undeclared_dropped", "TestApplied", declared=without("alibi"), unsupported=silent("alibi"),
          alibi=lambda self, operands: 0),
    fault("undeclared_applied", "TestApplied", declared=without("softcap"), unsupported=silent("softcap")),
    fault("undeclared_gqa", "TestGroupedHeads", declared=without("gqa"), unsupported=silent("gqa")),
    fault("undeclared_dtype", "TestNumerics", declared=replace(EVERYTHING, dtypes=frozenset({"float32"})),
          unsupported=silent("dtypes")),
    fault("undeclared_head_dim", "TestNumerics", declared=replace(EVERYTHING, head_dims=ak.Sizes(8, 128, 8)),
          unsupported=silent("head_dims")),
    fault("undeclared_lse", "TestMerge", declared=without("lse"), unsupported=silent("lse")),
    fault("undeclared_lengths_in_cache", "TestCacheEquivalence", declared=without("lengths"),
          unsupported=silent("lengths")),
    fault("declared_refused", "TestApplied", unsupported=refusing("window", "left")),
    fault("declared_refused_by_other_code", "TestApplied", unsupported=refusing("path", "chunks")),
    fault("foreign_arrays_taken", "TestRefused", unsupported=silent("libraries"),
          read=lambda self, *arrays: tuple(np.asarray(getattr(array, "_array", array)) for array in arrays)),
    fault("gradients_detached", "TestRefused", unsupported=silent("grad")),
    fault("refused_by_other_error", "TestApplied", OtherError),
    fault("refused_without_code", "TestApplied", declared=without("bias"), unsupported=renamed),
    fault("poison_declared_masked", "TestHiddenKeys", declared=replace(EVERYTHING, poison="masked")),
]  # fmt: skip

NUMERIC_MUTANTS = [*CAUSAL, *LENGTHS, *HEADS, *SCORES, *SOFTMAX, *ARITHMETIC, *CALLS, *REFUSALS]
