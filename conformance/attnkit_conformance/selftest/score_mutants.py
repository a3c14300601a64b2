"""Faults in the arithmetic: terms of the scores, the softmax over tiles, empty rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faults import fault, first
from attnkit_conformance.selftest.plain import Array, Plain
from attnkit_conformance.selftest.softmax import Split


def softcap_last(self: Plain, query: Array, key: Array, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
    """Cap the scores when everything is added."""
    added = self.bias(operands, request) + self.alibi(operands, request)
    return self.cap(self.scale(request) * self.products(query, key) + added, request)


def clip(self: Plain, scores: Array, request: ak.AttentionRequest) -> Array:
    return scores if request.softcap is None else scores.clip(-request.softcap, request.softcap)


def hide_then_cap(self: Plain, scores: Array, shown: Array, request: ak.AttentionRequest) -> Array:
    return Plain.cap(self, Plain.hide(self, scores, shown, request), request)


def biased(change: Any) -> Any:
    """Take another bias than was given."""

    def bias(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        if operands.bias is None:
            return 0
        return Plain.bias(self, operands._replace(bias=change(operands.bias, request)), request)

    return bias


def sloped(change: Any) -> Any:
    """Take other slopes than were given."""

    def alibi(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
        if operands.alibi is None:
            return 0
        return Plain.alibi(self, operands._replace(alibi=change(operands.alibi)), request)

    return alibi


def sunk(change: Any) -> Any:
    """Take other sinks than were given."""

    def sinks(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Array | None:
        found = Plain.sinks(self, operands, request)
        return None if found is None else change(found)

    return sinks


def signed_distance(self: Plain, operands: ak.Operands, request: ak.AttentionRequest) -> Any:
    if operands.alibi is None:
        return 0
    rows, keys = operands.positions()
    return -operands.alibi[:, :, None, None] * (rows - keys).astype(np.float32)


SCORES = [
    fault("scale_none", "TestNumerics", scale=lambda self, request: 1.0),
    fault("scale_one_over_d", "TestNumerics", scale=lambda self, request: 1 / request.head_dim),
    fault("scale_from_value", "TestNumerics::test_head_sizes", scale=lambda self, request: request.value_dim**-0.5),
    fault("scale_argument_ignored", "TestApplied", scale=lambda self, request: request.head_dim**-0.5),
    fault("scale_magnitude", "TestOptions", scale=lambda self, request: abs(request.scale)),
    fault("scale_zero_is_default", "TestOptions",
          scale=lambda self, request: request.scale or request.head_dim**-0.5),
    fault("softcap_ignored", "TestApplied", cap=lambda self, scores, request: scores),
    fault("softcap_clips", "TestOptions", cap=clip),
    fault("softcap_before_scale", "TestOptions",
          cap=lambda self, scores, request: request.scale * Plain.cap(self, scores / (request.scale or 1), request)),
    fault("softcap_after_mask", "TestAttendance", cap=lambda self, scores, request: scores, hide=hide_then_cap),
    fault("softcap_after_bias", "TestOptions", scores=softcap_last),
    fault("bias_ignored", "TestApplied", bias=lambda self, operands, request: 0),
    fault("bias_scaled", "TestOptions", bias=biased(lambda bias, request: bias * request.scale)),
    fault("bias_head0", "TestOptions", bias=biased(lambda bias, request: first(bias, 1))),
    fault("bias_batch0", "TestOptions", bias=biased(lambda bias, request: first(bias, 0))),
    fault("bias_row0", "TestOptions", bias=biased(lambda bias, request: first(bias, 2))),
    fault("bias_clipped", "TestOptions", bias=biased(lambda bias, request: bias.clip(-1e4))),
    fault("bias_for_log2", "TestOptions", bias=biased(lambda bias, request: bias * np.float32(np.log2(np.e)))),
    fault("alibi_sign", "TestOptions", alibi=sloped(lambda slopes: -slopes)),
    fault("alibi_head0", "TestOptions", alibi=sloped(lambda slopes: first(slopes, 1))),
    fault("alibi_batch0", "TestOptions", alibi=sloped(lambda slopes: first(slopes, 0))),
    fault("alibi_signed_distance", "TestOptions", alibi=signed_distance),
    fault("alibi_no_offset", "TestOptions",
          alibi=lambda self, operands, request: Plain.alibi(self, operands._replace(query_offset=None), request)),
    fault("alibi_in_float32", "TestOptions",
          alibi=lambda self, operands, request: np.float32(Plain.alibi(self, operands, request)) * np.float32(1)),
    fault("sink_ignored", "TestApplied", sinks=lambda self, operands, request: None),
    fault("sink_head0", "TestOptions", sinks=sunk(lambda sinks: first(sinks, 0))),
    fault("sink_scaled", "TestOptions", sinks=sunk(lambda sinks: sinks / 8)),
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


class SilentSink(Plain):
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
            more = self.tile - part.shape[-1]
            zeros, keys = np.zeros((*part.shape[:3], more)), np.zeros((*values.shape[:2], more, values.shape[3]))
            yield np.concatenate([part, zeros], axis=3), np.concatenate([values, keys], axis=2)


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


class Gapped(Plain):
    """Leaves out the last key of every tile but the last."""

    def tiles(self, scores: Array, value: Array) -> Iterator[tuple[Array, Array]]:
        for start in range(0, scores.shape[3], self.tile):
            stop = start + self.tile - (start + self.tile < scores.shape[3])
            yield scores[..., start:stop], value[:, :, start:stop]


class Skipping(Plain):
    """Skips a tile whose scores all lie 4 below the maximum so far."""

    def accumulate(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array, Array]:
        tops = [part.max(axis=-1, keepdims=True) for part, _ in self.tiles(scores, value)]
        for number, (part, _) in enumerate(self.tiles(scores, value)):
            if number:
                part[...] = np.where(tops[number] < np.max(tops[:number], axis=0) - 4, -np.inf, part)
        return super().accumulate(scores, value, sinks)


class SplitPlain(Split, Plain):
    """Correct; what follows are faults in it."""


def average(self: Split, top: Array, base: Array) -> Array:
    """Give each part the same share, but those that see nothing."""
    return np.isfinite(top).astype(base.dtype)


def sink_in_every_part(self: Split, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array, Array]:
    return self.merge([Plain.accumulate(self, *part, sinks) for part in self.split(scores, value)])


class OneTile(Plain):
    """Takes the maximum over all keys at once, of which there may be none."""

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        scores.max(axis=-1)
        return super().softmax(scores, value, sinks)


class EmptyRows(Plain):
    """Gives rows without keys NaN, as a plain softmax does."""

    def fill(self, value: Array) -> Any:
        return np.nan

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        output, lse = super().softmax(scores, value, sinks)
        empty = np.isneginf(scores).all(axis=-1, keepdims=True)
        return np.where(empty, self.fill(value), output), lse


class MeanRows(EmptyRows):
    """Gives rows without keys the mean of all, as a finite number in place of ``-inf`` does."""

    def fill(self, value: Array) -> Any:
        return value.mean(axis=2, keepdims=True) if value.shape[2] else 0


def skip_last_row(self: Plain, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
    output[:, :, 1:][:, :, -1:] = 0
    return Plain.finish(self, output, query, request)


def whole_sixteens(self: Plain, query: Array, key: Array) -> Array:
    size = query.shape[3] // 16 * 16
    return Plain.products(self, query[..., :size], key[..., :size])


SOFTMAX = [
    fault("rescale_output_missing", "TestNumerics", rescale_output=lambda self, shrink: 1),
    fault("rescale_total_missing", "TestNumerics", rescale_total=lambda self, shrink: 1),
    fault("max_of_first_tile", "TestNumerics", FirstTile),
    fault("max_not_subtracted", "TestShift", base=lambda self, top: np.zeros_like(top)),
    fault("tail_tile_dropped", "TestAttendance", WholeTiles),
    fault("tail_of_large_tiles_dropped", "TestAttendance", WholeTiles, tile=1024),
    fault("max_of_large_first_tile", "TestNumerics::test_many_tiles", FirstTile, tile=1024),
    fault("pad_keys_counted", "TestAttendance", Padded),
    fault("boundary_key_twice", "TestAttendance", Overlapping),
    fault("boundary_key_dropped", "TestAttendance", Gapped),
    fault("boundary_of_large_tiles_dropped", "TestAttendance", Gapped, tile=1024),
    fault("small_tiles_skipped", "TestNumerics", Skipping),
    fault("merged_by_average", "TestNumerics", SplitPlain, share=average),
    fault("merged_by_log2", "TestNumerics", SplitPlain, share=lambda self, top, base: np.exp2(top - base)),
    fault("last_part_not_merged", "TestAttendance", SplitPlain,
          merge=lambda self, parts: Split.merge(self, parts[:-1])),
    fault("sink_in_every_part", "TestOptions", SplitPlain, accumulate=sink_in_every_part),
    fault("division_missing", "TestNumerics", divide=lambda self, output, total: output),
    fault("head_dim_tail_dropped", "TestNumerics::test_head_sizes", products=whole_sixteens),
    fault("sentinel_1e4", "TestEmpty", hidden=-1e4),
    fault("sentinel_1e4_as_a_score", "TestHiddenKeys", hidden=-1e4),
    fault("sentinel_20", "TestAttendance", hidden=-20.0),
    fault("sink_not_in_max", "TestOptions", LateSink),
    fault("sink_not_in_lse", "TestEmpty", SilentSink),
    fault("lse_base_2", "TestOptions", lse=lambda self, top, total: Plain.lse(self, top, total) / np.log(2)),
    fault("lse_without_max", "TestOptions", lse=lambda self, top, total: np.log(total)[..., 0]),
    fault("lse_of_empty_rows_is_0", "TestEmpty",
          lse=lambda self, top, total: np.nan_to_num(Plain.lse(self, top, total), neginf=0)),
    fault("empty_row_nan", "TestEmpty", EmptyRows),
    fault("empty_row_mean", "TestEmpty", MeanRows),
    fault("last_row_skipped", "TestNumerics", finish=skip_last_row),
    fault("scores_ignored", "TestOneHot", products=lambda self, query, key: 0 * Plain.products(self, query, key)),
    fault("no_keys_crash", "TestEmpty::test_empty_axes", OneTile),
]  # fmt: skip


SCORE_MUTANTS = [*SCORES, *SOFTMAX]
