"""Faults on the way back: gradients that are wrong, in the wrong place, or that change the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.differentiable import Differentiable, Recorded, Way
from attnkit_conformance.selftest.faults import Mutant, fault
from attnkit_conformance.selftest.plain import Array


def wrong(name: str, killer: str, **members: Any) -> Mutant:
    return fault(name, killer, Differentiable, **members)


def changed(name: str, change: Callable[..., Array]) -> Any:
    """Change one of the gradients."""

    def backward(self: Differentiable, call: Recorded, *cotangents: Array) -> dict[str, Array]:
        gradients = Differentiable.backward(self, call, *cotangents)
        return gradients | ({name: change(gradients[name], call)} if name in gradients else {})

    return backward


def without_last_key(gradient: Array, call: Recorded) -> Array:
    gradient[:, :, 1:][:, :, -1:] = 0
    return gradient


def without_late_keys(gradient: Array, call: Recorded) -> Array:
    """Lose what lies beyond a first tile of 1024 keys."""
    gradient[:, :, 1024:] = 0
    return gradient


def without_odd_features(gradient: Array, call: Recorded) -> Array:
    """Lose the features after the last whole vector of 8."""
    gradient[..., gradient.shape[-1] // 8 * 8 :] = 0
    return gradient


def nan_for_zero(gradient: Array, call: Recorded) -> Array:
    return np.where(gradient.any(axis=-1, keepdims=True), gradient, np.nan)


def first_head(self: Differentiable, gradient: Array, request: ak.AttentionRequest) -> Array:
    return gradient[:, :: max(1, request.group)]


def modulo(self: Differentiable, gradient: Array, request: ak.AttentionRequest) -> Array:
    return sum(np.split(gradient, max(1, request.group), axis=1))


def sum_of_narrow(self: Differentiable, gradient: Array, request: ak.AttentionRequest) -> Array:
    """Sum over the group what was rounded to the query's type before."""
    return Differentiable.group_sum(self, gradient.astype(np.dtype(request.dtype)).astype(gradient.dtype), request)


def first_of_each(self: Differentiable, gradient: Array, shape: tuple[int, ...]) -> Array:
    """Take one element where a bias was broadcast, in place of the sum."""
    return gradient[tuple(slice(0, size) for size in shape)] if len(shape) == gradient.ndim else gradient


def unmasked(self: Differentiable, way: Way) -> Array:
    return way.cotangent @ way.value.swapaxes(-1, -2)


def whole_mask(self: Differentiable, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
    """Forget on the way back that keys are hidden."""
    shown = Differentiable.shown(self, operands, request)
    return np.broadcast_to(shown.any(axis=-1, keepdims=True), shown.shape)


def without(operand: str) -> Any:
    """Forget a term of the scores on the way back."""

    def way(self: Differentiable, call: Recorded, cotangent: Array, lse_cotangent: Any) -> Way:
        forgotten: dict[str, Any] = {operand: None}
        operands = call.operands._replace(**forgotten)
        found = Differentiable.way(self, call._replace(operands=operands), cotangent, lse_cotangent)
        return found._replace(operands=call.operands)

    return way


def of_rounded(self: Differentiable, cotangent: Array, output: Array) -> Array:
    return Differentiable.delta(self, cotangent, output.astype(np.float16).astype(output.dtype))


ARITHMETIC = [
    wrong("delta_omitted", "TestGradients", delta=lambda self, cotangent, output: np.zeros(output.shape[:3])),
    wrong("delta_of_a_rounded_output", "TestGradients", delta=of_rounded),
    wrong("query_gradient_not_scaled", "TestGradients", scale_query=lambda self, scale: 1.0),
    wrong("query_gradient_scaled_by_magnitude", "TestGradients", scale_query=lambda self, scale: abs(scale)),
    wrong("group_not_summed", "TestGradients", group_sum=first_head),
    wrong("group_summed_modulo", "TestGradients", group_sum=modulo),
    wrong("group_summed_in_16_bits", "TestGradientProbes::test_groups_sum_in_the_accumulation_type",
          group_sum=sum_of_narrow),
    wrong("last_key_dropped", "TestGradients", backward=changed("key", without_last_key)),
    wrong("last_value_dropped", "TestGradientProbes", backward=changed("value", without_last_key)),
    wrong("late_keys_dropped", "TestGradients::test_many_tiles", backward=changed("key", without_late_keys)),
    wrong("odd_features_dropped", "TestGradients::test_head_sizes", backward=changed("query", without_odd_features)),
    wrong("softcap_slope_missing", "TestGradients", cap_slope=lambda self, way: 1),
    wrong("hidden_keys_not_masked", "TestGradientIsolation::test_hidden_keys_change_nothing",
          reach=unmasked, into_products=lambda self, way, scores: scores * self.cap_slope(way)),
    wrong("weights_without_lse", "TestGradients", weights=lambda self, scores, lse: np.exp(scores)),
    wrong("lse_cotangent_ignored", "TestGradients::test_lse", lse_part=lambda self, cotangent: 0),
    wrong("lse_cotangent_subtracted", "TestGradients::test_lse", lse_part=lambda self, cotangent: -cotangent),
    wrong("mask_ignored_on_the_way_back", "TestGradientProbes", shown=whole_mask),
    wrong("bias_ignored_on_the_way_back", "TestGradients::test_terms_of_the_scores", way=without("bias")),
    wrong("alibi_ignored_on_the_way_back", "TestGradients::test_terms_of_the_scores", way=without("alibi")),
    wrong("sinks_ignored_on_the_way_back", "TestGradients::test_lse", way=without("sinks")),
    wrong("bias_gradient_of_sequence_0", "TestGradients::test_terms_of_the_scores",
          bias_sum=lambda self, gradient, shape: Differentiable.bias_sum(
              self, gradient if shape[0] > 1 else gradient[:1], shape)),
    wrong("bias_gradient_not_reduced", "TestGradients::test_terms_of_the_scores", bias_sum=first_of_each),
    wrong("bias_gradient_not_centred", "TestGradientProbes::test_rows_of_the_bias_add_up",
          backward=changed("bias", lambda gradient, call: gradient + np.float32(1e-3))),
    wrong("sink_gradient_zero", "TestGradients", sink_sum=lambda self, way: np.zeros(way.request.num_heads)),
    wrong("sink_gradient_nan", "TestGradients",
          sink_sum=lambda self, way: Differentiable.sink_sum(self, way) + 0 * way.operands.sinks),
    wrong("gradients_in_float16", "TestGradients",
          backward=changed("query", lambda gradient, call: gradient.astype(np.float16))),
]  # fmt: skip


class LiveRows(Differentiable):
    """Does not look which rows are padding."""

    def live_rows(self, operands: ak.Operands) -> Array:
        return np.ones((1, 1, operands.query_length, 1), bool)


class Accumulating(Differentiable):
    """Adds to the gradients of the call before, if they are of the same shapes."""

    before: dict[str, Array] = {}

    def backward(self, call: Recorded, *cotangents: Array) -> dict[str, Array]:
        gradients = super().backward(call, *cotangents)
        if {name: array.shape for name, array in gradients.items()} == {n: a.shape for n, a in self.before.items()}:
            gradients = {name: array + self.before[name] for name, array in gradients.items()}
        self.before = gradients
        return gradients


class Together(Differentiable):
    """Knows the gradients of query, key and value as three, in this order."""

    def vjp(self, function: Any, arrays: Sequence[Array], cotangents: Sequence[Array]) -> Any:
        results, _ = super().vjp(function, arrays, cotangents)
        found = super().backward(self.last, *cotangents)
        return results, [self.convert(found[name], leaf) for name, leaf in zip(found, arrays, strict=False)]


class InPlace(Differentiable):
    """Scales the cotangent where it lies."""

    def way(self, call: Recorded, cotangent: Array, lse_cotangent: Any) -> Way:
        way = super().way(call, cotangent.copy(), lse_cotangent)
        cotangent *= 2
        return way


class Contiguous(Differentiable):
    """Reads the memory behind a cotangent as if it lay in rows."""

    def way(self, call: Recorded, cotangent: Array, lse_cotangent: Any) -> Way:
        if 0 in cotangent.strides:
            flat = np.zeros(cotangent.size, cotangent.dtype)
            flat[0] = cotangent.flat[0]
            cotangent = flat.reshape(cotangent.shape)
        return super().way(call, cotangent, lse_cotangent)


class Careless(Differentiable):
    """Computes another output when gradients are wanted."""

    def attention(self, query: Array, key: Array, value: Array, operands: Any, request: Any) -> ak.AttentionOutput:
        result = super().attention(query, key, value, operands, request)
        return result._replace(output=result.output * np.float32(1 - 2e-7)) if request.grad else result


class Detached(Differentiable):
    """Takes keys and values for constants."""

    def backward(self, call: Recorded, *cotangents: Array) -> dict[str, Array]:
        gradients = super().backward(call, *cotangents)
        return gradients | {name: 0 * gradients[name] for name in ("key", "value")}


class Wide(Differentiable):
    """Gives gradients in the accumulation type."""

    def convert(self, gradient: Array, leaf: Array) -> Array:
        return gradient.reshape(leaf.shape)


class Silent(Differentiable):
    """Detaches inputs that require gradients, though it declares none."""

    declared = replace(Differentiable.declared, grad=False)

    def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        return super().unsupported(request._replace(grad=False), path)


PLACES = [
    wrong("empty_rows_nan", "TestGradients::test_empty_rows",
          backward=changed("query", nan_for_zero)),
    wrong("hidden_keys_not_quite_zero", "TestGradients::test_structures",
          backward=changed("value", lambda gradient, call: np.where(gradient == 0, np.float32(1e-39), gradient))),
    fault("padding_rows_pass_gradients", "TestGradientIsolation", LiveRows),
    fault("gradients_pile_up", "TestGradientCalls::test_from_run_to_run", Accumulating),
    fault("gradients_by_place", "TestGradientCalls::test_each_argument_alone", Together),
    fault("cotangent_written_over", "TestGradientCalls::test_arguments_stay_as_they_are", InPlace),
    fault("cotangent_read_as_contiguous", "TestGradientCalls::test_cotangents_that_are_one", Contiguous),
    fault("output_changes_with_gradients", "TestGradientCalls::test_results_do_not_change", Careless),
    fault("keys_and_values_detached", "TestGradients", Detached),
    fault("gradients_of_a_wider_type", "TestGradients::test_distributions", Wide),
    fault("gradients_dropped_silently", "TestRefused::test_gradients", Silent),
    fault("gradients_undeclared_yet_taken", "TestGradients", Silent),
]  # fmt: skip

GRADIENT_MUTANTS = [*ARITHMETIC, *PLACES]
