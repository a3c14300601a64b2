"""Faults in precision: what is rounded where the declared numerics do not allow it, truncated, or approximated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Flash, Plain
from attnkit_conformance.selftest.softmax import Split

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ONLY_BFLOAT16 = replace(EVERYTHING, dtypes=frozenset({"bfloat16"}))
FLASH_BFLOAT16 = replace(Flash.declared, dtypes=frozenset({"bfloat16"}), lse=False)


def half(array: Array) -> Array:
    return array.astype(np.float16).astype(array.dtype)


def brain(array: Array) -> Array:
    return array.astype(BFLOAT16).astype(array.dtype)


def cut(array: Array, bits: int) -> Array:
    """Cut the last bits of float32 off, in place of rounding."""
    return (array.view(np.uint32) & np.uint32(2**32 - 2**bits)).view(np.float32)


def tf32(array: Array) -> Array:
    """Round float32 to the ten bits of a TF32 operand."""
    if array.dtype != np.float32:
        return array
    return cut(np.ascontiguousarray(array) * np.float32(1 + 2**-12), 13)


def truncated(self: Plain, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
    """Cut float32 off where bfloat16 ends."""
    return Plain.finish(self, cut(output, 16) if request.dtype == "bfloat16" else output, query, request)


def rounded_twice(self: Plain, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
    return Plain.finish(self, half(output), query, request)


class Narrow(Flash):
    """Knows the element type of the query and rounds no weights, so that other things may be rounded to it."""

    declared = EVERYTHING

    def weigh(self, weights: Array, values: Array) -> Array:
        return Plain.weigh(self, weights, values)

    def to_query_type(self, array: Array) -> Array:
        return array if self.rounded is None else self.round(array)


class SplitNarrow(Split, Narrow):
    """The same in three parts."""


class SplitFlash(Split, Flash):
    """Correct; its parts may be rounded."""


def in_query_type(self: Any, array: Array) -> Array:
    return self.to_query_type(array)


def prescaled(self: Any, query: Array, key: Array, request: ak.AttentionRequest) -> Array:
    """Scale the query before the product, and store it in its own type."""
    return self.products(self.to_query_type(query * np.asarray(request.scale, query.dtype)), key)


def unscaled_half(self: Any, query: Array, key: Array) -> Array:
    """Store unscaled products in float16 where the query is of that type."""
    scores = Plain.products(self, query, key)
    return half(scores) if self.rounded == np.float16 else scores


def wavy(size: float, frequency: float) -> Any:
    """Approximate the exponential with a relative error that swings with its argument."""

    def exp(self: Plain, argument: Array) -> Array:
        swing = np.cos(frequency * np.where(np.isfinite(argument), argument, 0))
        return np.exp(argument) * (1 + size * swing).astype(argument.dtype)

    return exp


PRECISION = [
    fault("bfloat16_operands", "TestNumerics", read=lambda self, query, key, value: (brain(query), brain(key), value)),
    fault("tf32_operands", "TestNumerics", read=lambda self, query, key, value: (tf32(query), tf32(key), tf32(value))),
    fault("half_scores", "TestNumerics", products=lambda self, query, key: half(Plain.products(self, query, key))),
    fault("half_scores_of_half_queries", "TestNumerics", Narrow, products=unscaled_half),
    fault("scores_in_16_bits", "TestNumerics", Narrow,
          products=lambda self, query, key: self.to_query_type(Plain.products(self, query, key))),
    fault("query_scaled_in_its_type", "TestNumerics::test_head_sizes", Narrow, scaled_products=prescaled),
    fault("half_weights", "TestNumerics",
          tiles=lambda self, scores, value: ((half(part), more) for part, more in Plain.tiles(self, scores, value))),
    fault("bfloat16_rescale", "TestNumerics", rescale_total=lambda self, shrink: brain(shrink)),
    fault("total_in_16_bits", "TestNumerics", Narrow, store_total=in_query_type),
    fault("output_summed_in_16_bits", "TestNumerics", Narrow, store_output=in_query_type, tile=16),
    fault("output_summed_in_16_bits_key_by_key", "TestNumerics", Narrow, store_output=in_query_type, tile=1),
    fault("parts_in_16_bits", "TestNumerics", SplitNarrow, store_part=in_query_type),
    fault("half_output", "TestNumerics", finish=rounded_twice),
    fault("float32_for_float64", "TestNumerics",
          read=lambda self, query, key, value: (query, key, value.astype(np.float32))),
    fault("truncated_output", "TestNumerics", finish=truncated),
    fault("weights_rounded_undeclared", "TestNumerics", Flash, declared=EVERYTHING),
    fault("exp_off_by_2e3", "TestNumerics", exp=wavy(2e-3, 40)),
    fault("exp_off_by_6e3", "TestNumerics", exp=wavy(6e-3, 200)),
]  # fmt: skip

# Numerics that allow 16-bit weights leave less room between what is allowed and the same faults, and a backend without
# a log-sum-exp does not show its normaliser.
WITHIN_FLASH = [
    fault("flash_weights_truncated", "TestQuality", Flash, declared=FLASH_BFLOAT16,
          round=lambda self, weights: cut(weights, 16)),
    fault("flash_output_truncated", "TestNumerics", Flash, declared=FLASH_BFLOAT16, finish=truncated),
    fault("flash_total_in_16_bits", "TestQuality", Flash, declared=FLASH_BFLOAT16,
          store_total=lambda self, total: brain(total)),
    fault("flash_total_of_rounded_weights", "TestQuality", Flash, declared=FLASH_BFLOAT16, tile=16,
          add=lambda self, weights: brain(weights.sum(axis=-1, keepdims=True))),
    fault("flash_output_summed_in_16_bits", "TestQuality", Flash, declared=FLASH_BFLOAT16, tile=16,
          store_output=lambda self, output: brain(output)),
    fault("flash_parts_in_16_bits", "TestQuality", SplitFlash, declared=FLASH_BFLOAT16,
          store_part=lambda self, output: brain(output)),
    fault("flash_exp_off_by_6e3", "TestNumerics", Flash, declared=FLASH_BFLOAT16, exp=wavy(6e-3, 200)),
    fault("flash_exp_off_by_2e3", "TestQuality", Flash, declared=FLASH_BFLOAT16, exp=wavy(2e-3, 40)),
]  # fmt: skip

PRECISION_MUTANTS = [*PRECISION, *WITHIN_FLASH]
