"""The error budget of gradients: wide enough for correct backward passes, narrow enough for wrong ones.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes  # noqa: F401  # makes numpy.dtype("bfloat16") known
import numpy as np
import pytest

from attnkit.numerics import FA_BF16, FA_FP16, FLOAT64, FP32P_BF16, FP32P_FP16, STRICT_FP32, Numerics
from attnkit.reference import Truth, attention
from attnkit.reference_gradients import Cotangents, Gradients, gradient_tolerance, gradients

B, H, K, T, S, D, E = 2, 4, 2, 13, 41, 16, 12
GROUP = H // K
CAUSAL = ("causal",)
NAMES = ("query", "key", "value", "bias", "sinks")
DISTRIBUTIONS = ["uniform", "normal", "peaky", "ramp", "huge", "cancelling"]
PROFILES = [STRICT_FP32, FP32P_FP16, FP32P_BF16, FA_FP16, FA_BF16]
BY_PROFILE = pytest.mark.parametrize("numerics", PROFILES, ids=lambda numerics: f"{numerics.name}-{numerics.dtype}")
BY_DISTRIBUTION = pytest.mark.parametrize("distribution", DISTRIBUTIONS)
BIAS = np.random.default_rng(8).standard_normal((H, 1, S)).astype(np.float32)
SINKS = np.array([0.5, -np.inf, 3.0, -2.0], np.float32)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": -0.7},
    "softcap": {"softcap": 3.0},
    "tight softcap": {"softcap": 0.05},
    "bias": {"bias": BIAS},
    "large bias": {"bias": 100 + BIAS},
    "sinks": {"sinks": SINKS},
    "lengths": {"kv_lengths": [30, 41], "query_lengths": [9, 13]},
    "empty rows": {"query_offset": -5},
    "everything": {"softcap": 2.0, "bias": BIAS, "sinks": SINKS, "kv_lengths": [30, 41], "scale": 0.4},
}


@cache
def draw(distribution: str, dtype: str) -> tuple[Any, ...]:
    """Draw query, key, value and the cotangent of the output, exact in ``dtype``; and that of the log-sum-exp."""
    rng = np.random.default_rng(3)
    query, key = rng.standard_normal((B, H, T, D)), rng.standard_normal((B, K, S, D))
    value, output = rng.standard_normal((B, K, S, E)), rng.standard_normal((B, H, T, E))
    if distribution == "uniform":
        query, key, value, output = (rng.random(x.shape) for x in (query, key, value, output))
    elif distribution == "peaky":
        query *= 6
    elif distribution == "ramp":  # scores rise along the keys on top of a large common offset
        query, key = 0.5 * query + 1, 0.5 * key + np.linspace(-1, 1, S)[:, np.newaxis] + 0.5
        value = (-1.0) ** np.arange(S)[:, np.newaxis] + 0.5 * value + np.arange(K)[:, np.newaxis, np.newaxis]
    elif distribution == "huge":
        query, key = 30 * query, 30 * key
    elif distribution == "cancelling":  # heads of a group whose gradients cancel, and values that do
        query, value = np.repeat(query[:, ::GROUP], GROUP, axis=1), 4 * value
        output = output * (-1.0) ** np.arange(H)[:, np.newaxis, np.newaxis]
    lse = rng.standard_normal((B, H, T)).astype(np.float32)
    kind = np.dtype(dtype)
    return *(x.astype(kind).astype(np.float32) for x in (query, key, value, output)), lse


class Backward:
    """A backward pass that recomputes the weights, in float32, rounding what goes into products as ``numerics`` says.

    Each method is a place where something can be wrong. It takes from ``truth`` only which keys are shown.
    """

    def __init__(self, numerics: Numerics) -> None:
        self.numerics = numerics

    def __call__(self, inputs: tuple[Any, ...], truth: Truth, lse_cotangent: Any) -> Gradients:
        query, key, value, cotangent = inputs
        problem, f32 = truth.problem, np.float32
        key, value = np.repeat(key, GROUP, axis=1), np.repeat(value, GROUP, axis=1)
        bias, sinks = problem.bias.astype(f32), problem.sinks.astype(f32)
        capped = self.cap(f32(problem.scale) * (query @ key.swapaxes(-1, -2)), problem.softcap)
        scores = np.where(problem.shown, capped + bias, -np.inf)
        output, lse = self.forward(scores, value, sinks)
        weights = np.exp(scores - self.lse(lse)[..., np.newaxis])
        reach = self.masked(cotangent @ value.swapaxes(-1, -2), problem.shown)
        above = lse_cotangent - self.delta(cotangent, output)
        into_scores = weights * (reach + above[..., np.newaxis])
        into_products = self.stored(into_scores * self.cap_slope(capped, problem.softcap))
        sink_weights = np.exp(sinks[:, np.newaxis] - lse)
        return Gradients(
            self.rounded(self.scaled(f32(problem.scale), into_products @ key)),
            self.rounded(self.group_sum(f32(problem.scale) * (into_products.swapaxes(-1, -2) @ query))),
            self.rounded(self.group_sum(self.stored(weights).swapaxes(-1, -2) @ cotangent)),
            self.bias_sum(into_scores, problem.bias_shape).astype(np.float64),
            (sink_weights * above).sum(axis=(0, 2)).astype(np.float64),
        )

    def forward(self, scores: Any, value: Any, sinks: Any) -> tuple[Any, Any]:
        """Give the output as it is stored, and the log-sum-exp with 0 for a row without keys."""
        top = np.maximum(scores.max(axis=-1, keepdims=True), sinks[:, np.newaxis, np.newaxis])
        top = np.where(top > -np.inf, top, np.float32(0))
        weights = np.exp(scores - top)
        normaliser = weights.sum(axis=-1, keepdims=True) + np.exp(sinks[:, np.newaxis, np.newaxis] - top)
        normaliser = np.where(normaliser > 0, normaliser, np.float32(1))
        return self.rounded(self.stored(weights) @ value / normaliser), (top + np.log(normaliser))[..., 0]

    def cap(self, scores: Any, softcap: float | None) -> Any:
        return scores if softcap is None else np.float32(softcap) * np.tanh(scores / np.float32(softcap))

    def cap_slope(self, capped: Any, softcap: float | None) -> Any:
        return np.float32(1) if softcap is None else 1 - (capped / np.float32(softcap)) ** 2

    def lse(self, lse: Any) -> Any:
        return lse

    def delta(self, cotangent: Any, output: Any) -> Any:
        return (cotangent * output).astype(np.float32).sum(axis=-1)

    def masked(self, reach: Any, shown: Any) -> Any:
        return np.where(shown, reach, np.float32(0))

    def scaled(self, scale: Any, gradient: Any) -> Any:
        return scale * gradient

    def stored(self, array: Any) -> Any:
        """Round what goes into a product."""
        return (
            array
            if self.numerics.u_p == self.numerics.u_a
            else array.astype(np.dtype(self.numerics.dtype)).astype(np.float32)
        )

    def group_sum(self, gradient: Any) -> Any:
        return gradient.reshape(B, K, GROUP, *gradient.shape[2:]).sum(axis=2)

    def bias_sum(self, gradient: Any, shape: tuple[int, ...]) -> Any:
        full = (1,) * (4 - len(shape)) + shape
        axes = tuple(axis for axis, size in enumerate(full) if size == 1)
        return gradient.sum(axis=axes, keepdims=True).reshape(shape)

    def rounded(self, array: Any) -> Any:
        return array.astype(np.dtype(self.numerics.dtype)).astype(np.float64)


def ratios(backward: Backward, distribution: str, *, mask: Any = (CAUSAL,), **options: Any) -> dict[str, float]:
    """Give the largest error of each gradient in units of its bound."""
    *inputs, lse = draw(distribution, backward.numerics.dtype)
    truth = attention(*inputs[:3], mask=mask, **options)
    cotangents = Cotangents(inputs[3], lse)
    exact, bound = gradients(truth, cotangents), gradient_tolerance(truth, cotangents, backward.numerics)
    with np.errstate(over="ignore", invalid="ignore"):
        found = backward(tuple(inputs), truth, lse)
    return {
        name: float(np.max(np.abs(getattr(found, name) - getattr(exact, name)) / getattr(bound, name)))
        for name in NAMES
    }


@BY_PROFILE
@BY_DISTRIBUTION
def test_correct_passes_stay_within(numerics: Numerics, distribution: str) -> None:
    assert max(ratios(Backward(numerics), distribution).values()) <= 1


@BY_PROFILE
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_correct_passes_stay_within_under_every_option(numerics: Numerics, options: dict[str, Any]) -> None:
    assert max(ratios(Backward(numerics), "peaky", **options).values()) <= 1


class Unrounded(Backward):
    """Rounds neither its results nor the output that ``delta`` is taken from."""

    def rounded(self, array: Any) -> Any:
        return array.astype(np.float64)


@BY_PROFILE
def test_passes_that_round_less_stay_within(numerics: Numerics) -> None:
    assert max(ratios(Unrounded(numerics), "normal", **OPTIONS["everything"]).values()) <= 1


def test_bound_is_tight_where_only_the_results_are_rounded() -> None:
    found = ratios(Backward(FP32P_BF16), "normal")
    assert all(0.3 < found[name] <= 1 for name in ("query", "key", "value"))


WRONG: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # the gradient that is wrong, the options that show it, what is wrong
    "delta left out": ("query", {}, {"delta": lambda self, cotangent, output: np.float32(0)}),
    "scale left out of the queries": ("query", {}, {"scaled": lambda self, scale, gradient: gradient}),
    "one head of the group": ("key", {}, {"group_sum": lambda self, gradient: gradient[:, ::GROUP]}),
    "mean over the group": (
        "value",
        {},
        {"group_sum": lambda self, gradient: Backward.group_sum(self, gradient) / GROUP},
    ),
    "slope of the soft-cap left out": (
        "key",
        {"softcap": 3.0},
        {"cap_slope": lambda self, capped, softcap: np.float32(1)},
    ),
    "slope without the square": (
        "query",
        {"softcap": 3.0},
        {"cap_slope": lambda self, capped, softcap: 1 - np.abs(capped) / np.float32(softcap)},
    ),
    "bias of the first sequence": (
        "bias",
        {"bias": BIAS},
        {"bias_sum": lambda self, gradient, shape: Backward.bias_sum(self, gradient[:1], shape)},
    ),
    "weights from another log-sum-exp": ("value", {}, {"lse": lambda self, lse: lse + np.float32(0.02)}),
    "weights without a log-sum-exp": ("value", {}, {"lse": lambda self, lse: 0 * lse}),
}


@BY_PROFILE
@pytest.mark.parametrize(("name", "options", "members"), WRONG.values(), ids=WRONG.keys())
def test_wrong_passes_exceed(numerics: Numerics, name: str, options: dict[str, Any], members: dict[str, Any]) -> None:
    wrong = type("Wrong", (Backward,), members)(numerics)
    assert ratios(wrong, "normal", **options)[name] > 1


@pytest.mark.parametrize("numerics", [FP32P_FP16, FP32P_BF16], ids=lambda numerics: numerics.dtype)
def test_a_group_summed_in_16_bits_exceeds(numerics: Numerics) -> None:
    """The gradients of the two heads of a group nearly cancel, so that what each loses is not small to the sum."""
    wrong = type("Wrong", (Backward,), {"group_sum": lambda self, x: Backward.group_sum(self, self.rounded(x))})
    assert max(ratios(wrong(numerics), "cancelling").values()) > 1


@BY_PROFILE
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_bound_says_something(numerics: Numerics, distribution: str) -> None:
    """A bound as wide as the gradients would pass anything."""
    *inputs, lse = draw(distribution, numerics.dtype)
    truth, cotangents = (
        attention(*inputs[:3], mask=(CAUSAL,), bias=np.zeros((B, H, T, S)), sinks=SINKS),
        Cotangents(inputs[3], lse),
    )
    exact, bound = gradients(truth, cotangents), gradient_tolerance(truth, cotangents, numerics)
    for name in NAMES:
        assert getattr(bound, name).max() <= 0.15 * np.abs(getattr(exact, name)).max()


@BY_PROFILE
def test_anything_but_zero_where_nothing_passes_exceeds(numerics: Numerics) -> None:
    *inputs, _ = draw("normal", numerics.dtype)
    bound = gradient_tolerance(attention(*inputs[:3], kv_lengths=0), Cotangents(inputs[3]), numerics)
    for name in ("query", "key", "value"):
        assert np.all(getattr(bound, name) == numerics.w_o)
    assert np.all(bound.bias == 2.0**-126)


def test_one_key_by_hand() -> None:
    """The softmax of one key is 1: no gradient passes through its score, only the errors of a recomputed one do."""
    u, half, lost = 2.0**-24, 2.0**-11, 2.0**-25
    truth = attention([[[[3.0]]]], [[[[5.0]]]], [[[[2.0]]]], scale=1.0, bias=np.zeros(1))
    bound = gradient_tolerance(truth, Cotangents([[[[4.0]]]]), FA_FP16, terms="float64")
    score = (u + (1 + 2) * u) * 15
    lse = score + u * (1 + 3 + 8) + 5 * 15 * u
    relative = score + lse + u * (2 * 15 + 2 * 15 + 4)
    output = half * 2 + half * 2 + u * (1 + 3 + 3) * (2 + 2) + lost * 2 + lost
    through = u * (1 + 2) * (4 * 2 + 4 * 2) + 4 * output + lost
    weight = relative + half + lost + u * (1 + 3)
    assert bound.query.item() == pytest.approx(through * 5 + lost, rel=1e-12)
    assert bound.key.item() == pytest.approx(through * 3 + lost, rel=1e-12)
    assert bound.value.item() == pytest.approx(weight * 4 + half * 4 + lost, rel=1e-12)
    assert bound.bias.item() == pytest.approx(through, rel=1e-12)


def test_a_cotangent_of_the_lse_passes_through_one_key() -> None:
    truth = attention([[[[3.0]]]], [[[[5.0]]]], [[[[2.0]]]], scale=1.0)
    bound = gradient_tolerance(truth, Cotangents(0.0, 7.0), STRICT_FP32)
    u, score = 2.0**-24, 4 * 2.0**-24 * 15
    relative = score + (score + u * 12 + 75 * u) + u * 64
    assert bound.query.item() == pytest.approx(
        5 * (7 * relative + 2 * u * 7 + 2 * u * 7 + 4 * u * 7) + u * 35, rel=1e-9
    )


def test_a_sink_is_a_key_of_value_zero() -> None:
    rng = np.random.default_rng(0)
    query, key, value, output = (rng.standard_normal((1, 1, 3, 2)) for _ in range(4))
    key[:, :, 2] = value[:, :, 2] = 0
    as_key = attention(query, key, value, bias=np.array([0.0, 0.0, 0.7]))
    as_sink = attention(query, key[:, :, :2], value[:, :, :2], sinks=[0.7])
    cotangents = Cotangents(output, rng.standard_normal((1, 1, 3)))
    for numerics in PROFILES:
        one, other = (gradient_tolerance(truth, cotangents, numerics) for truth in (as_key, as_sink))
        assert other.value == pytest.approx(one.value[:, :, :2], rel=1e-6)
        assert other.sinks.item() == pytest.approx(one.bias[2], rel=1e-6)


def test_sequential_sums_and_more_tiles_widen_the_bound() -> None:
    *inputs, lse = draw("normal", "float32")
    truth, cotangents = attention(*inputs[:3], sinks=SINKS), Cotangents(inputs[3], lse)
    default = gradient_tolerance(truth, cotangents, STRICT_FP32)
    for wider in (
        gradient_tolerance(truth, cotangents, STRICT_FP32, tiles=S),
        gradient_tolerance(truth, cotangents, STRICT_FP32.with_sums("sequential")),
    ):
        for name in ("query", "key", "value"):
            assert np.all(getattr(wider, name) > getattr(default, name))


def test_terms_of_another_type_round_by_themselves() -> None:
    *inputs, lse = draw("normal", "float32")
    truth, cotangents = attention(*inputs[:3], bias=BIAS, sinks=SINKS), Cotangents(inputs[3], lse)
    exact, wide = gradients(truth, cotangents), gradient_tolerance(truth, cotangents, FLOAT64, terms="float64")
    narrow = gradient_tolerance(truth, cotangents, FLOAT64, terms="bfloat16")
    for name in ("bias", "sinks"):
        more = getattr(narrow, name) - getattr(wide, name)
        assert more == pytest.approx((2.0**-8 - 2.0**-53) * np.abs(getattr(exact, name)), rel=1e-9)
    np.testing.assert_array_equal(narrow.query, wide.query)
