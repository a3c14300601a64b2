"""Faults that are small, rare or far out: below the bound of every element, in long calls only, at extreme scores."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.differentiable import Differentiable
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.plain import Array, Flash, Plain
from attnkit_conformance.selftest.precision_mutants import cut
from attnkit_conformance.selftest.softmax import Split


def cut_to(array: Array, dtype: Any) -> Array:
    """Cut float32 off where a 16-bit type ends, in place of rounding."""
    bits = {"bfloat16": 16, "float16": 13}.get(np.dtype(dtype).name)
    return array if bits is None else cut(np.ascontiguousarray(array), bits)


def cut_gradients(self: Differentiable, gradient: Array, leaf: Array) -> Array:
    return Differentiable.convert(self, cut_to(gradient, leaf.dtype), leaf)


def in_sequence(self: Plain, weights: Array, values: Array) -> Array:
    """Add one key after the other."""
    total = np.zeros((*weights.shape[:3], values.shape[3]), weights.dtype)
    for key in range(weights.shape[3]):
        total += weights[..., key, None] * values[:, :, None, key]
    return total


def low_is_hidden(self: Plain, scores: Array, shown: Array, request: ak.AttentionRequest) -> Array:
    return Plain.hide(self, scores, shown & (scores > -1e5), request)


class Unnormalised(Split, Plain):
    """Merges parts by the exponentials of their log-sum-exps less the whole one, which do not add up to 1."""

    def merge(self, parts: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
        """Bring the normalised parts together."""
        lses = [self.lse(top, total)[..., None] for _, top, total in parts]
        whole = np.logaddexp.reduce(lses)
        base = self.base(whole)
        outputs = [self.divide(output, total) for output, _, total in parts]
        merged = sum(np.exp(lse - base) * output for lse, output in zip(lses, outputs, strict=True))
        return merged, whole, np.isfinite(whole).astype(whole.dtype)


class Racing(Plain):
    """Adds up long rows in another order each time."""

    tile = 512
    calls = 0

    def accumulate(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array, Array]:
        """Turn the keys round every other time."""
        self.calls += 1
        step = -1 if scores.shape[3] > self.tile and self.calls % 7 == 0 else 1
        return super().accumulate(scores[..., ::step], value[:, :, ::step], sinks)


QUALITY_MUTANTS = [
    fault("flash_weights_cut_off", "TestQuality", Flash, round=lambda self, weights: cut_to(weights, self.rounded)),
    fault("gradients_cut_off", "TestQuality", Differentiable, convert=cut_gradients),
    fault("merged_without_normalising", "TestQuality::test_weights_sum_to_one", Unnormalised),
    fault("summed_in_sequence_undeclared", "TestQuality::test_long_keys", tile=2**20, weigh=in_sequence),
    fault("long_rows_race", "TestQuality::test_stress_shapes", Racing),
    fault("very_low_scores_hidden", "TestQuality::test_scores_at_the_ends", hide=low_is_hidden),
    fault("sentinel_1e30_among_scores", "TestQuality::test_scores_far_apart", hidden=-1e30),
]
