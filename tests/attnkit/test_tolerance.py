"""The error budget: by hand on small rows, wide enough for correct kernels, narrow enough for wrong ones.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnkit.numerics import FA_BF16, FA_FP16, FLOAT64, FP32P_BF16, FP32P_FP16, STRICT_FP32, Numerics
from attnkit.reference import Truth, attention
from attnkit.tolerance import output_deviation, output_terms

B, H, K, T, S, D, E = 1, 4, 2, 17, 97, 32, 24
CAUSAL = ("causal",)
DISTRIBUTIONS = ["uniform", "normal", "peaky", "ramp", "huge", "cancelling"]
PROFILES = [STRICT_FP32, FP32P_FP16, FP32P_BF16, FA_FP16, FA_BF16]
TERMS = [
    "output rounding",
    "weight storage",
    "products and score storage",
    "subtraction and exponential",
    "sums",
    "underflow",
]
BY_PROFILE = pytest.mark.parametrize("numerics", PROFILES, ids=lambda numerics: f"{numerics.name}-{numerics.dtype}")
BY_DISTRIBUTION = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


@cache
def draw(distribution: str, dtype: str) -> tuple[Any, Any, Any]:
    """Draw inputs that are exact in ``dtype``, as float32."""
    rng = np.random.default_rng(3)
    query, key = rng.standard_normal((B, H, T, D)), rng.standard_normal((B, K, S, D))
    value = rng.standard_normal((B, K, S, E))
    if distribution == "uniform":
        query, key, value = rng.random(query.shape), rng.random(key.shape), rng.random(value.shape)
    elif distribution == "peaky":
        query *= 6
    elif distribution == "ramp":  # scores rise along the keys on top of a large common offset
        query, key = 0.5 * query + 1, 0.5 * key + np.linspace(-1, 1, S)[:, np.newaxis] + 0.5
        value = (-1.0) ** np.arange(S)[:, np.newaxis] + 0.5 * value + np.arange(K)[:, np.newaxis, np.newaxis]
    elif distribution == "huge":
        query, key = 30 * query, 30 * key
    elif distribution == "cancelling":  # nearly equal weights, so that the output is a small sum of large values
        query, value = 0.05 * query, 4 * value
    query, key, value = (x.astype(dtype).astype(np.float32) for x in (query, key, value))
    return query, key, value


def kernel(
    inputs: tuple[Any, Any, Any],
    truth: Truth,
    numerics: Numerics,
    *,
    tile: int = 32,
    scale: float = 1 / math.sqrt(D),
    heads: tuple[int, ...] = (0, 0, 1, 1),
    softcap: float = 0.0,
    added: Any = 0.0,
    sinks: Any = -math.inf,
    rescale: bool = True,
) -> tuple[Any, Any]:
    """Compute attention as a tiled kernel does, in float32, with the weights rounded as ``numerics`` says.

    It takes from ``truth`` only which keys are shown; the options from ``scale`` on can be given wrong values.
    """
    query, key, value = inputs[0], inputs[1][:, list(heads)], inputs[2][:, list(heads)]
    scores = np.float32(scale) * np.einsum("bhid,bhjd->bhij", query, key)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    scores = np.where(truth.problem.shown, scores + np.asarray(added, np.float32), np.float32(-np.inf))
    top = np.broadcast_to(np.asarray(sinks, np.float32)[..., np.newaxis, np.newaxis], (*scores.shape[:3], 1))
    normaliser, output = (top > -np.inf).astype(np.float32), np.zeros((*scores.shape[:3], E), np.float32)
    for start in range(0, scores.shape[3], tile):
        part = scores[..., start : start + tile]
        new_top = np.maximum(top, part.max(axis=-1, keepdims=True))
        safe = np.where(new_top > -np.inf, new_top, np.float32(0))
        shrink = np.exp(top - safe) if rescale else np.float32(1)
        weights = np.exp(part - safe)
        normaliser = normaliser * shrink + weights.sum(axis=-1, keepdims=True)
        if numerics.u_p > numerics.u_a:
            weights = weights.astype(numerics.dtype).astype(np.float32)
        output = output * shrink + weights @ value[:, :, start : start + tile]
        top = new_top
    full = normaliser > 0
    output = np.divide(output, normaliser, out=np.zeros_like(output), where=full)
    log = np.log(normaliser, out=np.full_like(normaliser, -np.inf), where=full)
    return output.astype(numerics.dtype).astype(np.float64), (top + log)[..., 0].astype(np.float64)


def ratio(error: Any, bound: Any) -> float:
    """Give the largest error in units of its bound."""
    return float(np.max(np.abs(error) / bound))


def output_ratio(got: Any, truth: Truth, numerics: Numerics, **options: Any) -> float:
    return ratio(got - truth.output, truth.tolerance(numerics, **options).output)


@BY_PROFILE
@BY_DISTRIBUTION
@pytest.mark.parametrize("tile", [32, S, 1])
def test_correct_kernels_stay_within(numerics: Numerics, distribution: str, tile: int) -> None:
    inputs = draw(distribution, numerics.dtype)
    truth = attention(*inputs, mask=[CAUSAL])
    output, lse = kernel(inputs, truth, numerics, tile=tile)
    bound = truth.tolerance(numerics, tiles=math.ceil(S / tile))
    assert ratio(output - truth.output, bound.output) <= 1
    assert ratio(lse - truth.lse, bound.lse) <= 1


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # what the oracle is told, what the kernel is told
    "softcap": ({"softcap": 3.0}, {"softcap": 3.0}),
    "tight softcap": ({"softcap": 0.05}, {"softcap": 0.05}),
    "scale": ({"scale": 0.7}, {"scale": 0.7}),
    "bias": ({"bias": 100 + np.arange(S) / 8}, {"added": 100 + np.arange(S) / 8}),
    "alibi": (
        {"alibi": [0.5, 0.25, 0.3, 0.7]},
        {
            "added": -np.array([0.5, 0.25, 0.3, 0.7])[:, None, None]
            * np.abs(np.arange(T)[:, None] + S - T - np.arange(S))
        },
    ),
    "sinks": ({"sinks": [0.3, -9.0, 9.0, 200.0]}, {"sinks": [0.3, -9.0, 9.0, 200.0]}),
    "lengths": ({"kv_lengths": 70, "query_lengths": 11}, {}),
    "empty rows": ({"query_offset": -5}, {}),
}


@pytest.mark.parametrize(("oracle", "options"), OPTIONS.values(), ids=OPTIONS.keys())
@BY_PROFILE
def test_correct_kernels_stay_within_under_every_option(numerics: Numerics, oracle: Any, options: Any) -> None:
    inputs = draw("peaky", numerics.dtype)
    truth = attention(*inputs, mask=[CAUSAL], **oracle)
    output, lse = kernel(inputs, truth, numerics, **options)
    bound, finite = truth.tolerance(numerics), truth.lse > -np.inf
    assert ratio(output - truth.output, bound.output) <= 1
    assert ratio(lse[finite] - truth.lse[finite], bound.lse[finite]) <= 1
    np.testing.assert_array_equal(lse[~finite], -np.inf)


def test_bound_is_tight_where_only_the_output_is_rounded() -> None:
    inputs = draw("normal", "bfloat16")
    truth = attention(*inputs)
    assert 0.3 < output_ratio(kernel(inputs, truth, FP32P_BF16)[0], truth, FP32P_BF16) <= 1


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # what is wrong about the mask, what is wrong about the arithmetic
    "causal, one key too many": ({"query_offset": S - T + 1}, {}),
    "causal, one key too few": ({"query_offset": S - T - 1}, {}),
    "causal, aligned at the top left": ({"query_offset": 0}, {}),
    "last key dropped": ({"kv_lengths": S - 1, "query_offset": S - T}, {}),
    "no scale": ({}, {"scale": 1.0}),
    "scale without the square root": ({}, {"scale": 1 / D}),
    "heads modulo": ({}, {"heads": (0, 1, 0, 1)}),
    "running maximum without rescaling": ({}, {"rescale": False}),
}
# A softmax that is nearly one-hot may give the key in question no weight, and then the wrong answer is a right one.
UNSEEN = {(name, inputs) for name in list(WRONG)[:4] for inputs in ("peaky", "huge")}


@pytest.mark.parametrize("numerics", [STRICT_FP32, FA_BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "distribution"),
    [(name, distribution) for name in WRONG for distribution in DISTRIBUTIONS if (name, distribution) not in UNSEEN],
)
def test_wrong_kernels_exceed(numerics: Numerics, name: str, distribution: str) -> None:
    mask, arithmetic = WRONG[name]
    inputs = draw(distribution, numerics.dtype)
    truth = attention(*inputs, mask=[CAUSAL])
    got, _ = kernel(inputs, attention(*inputs, mask=[CAUSAL], **mask), numerics, **arithmetic)
    assert output_ratio(got, truth, numerics) > 1


@BY_PROFILE
@BY_DISTRIBUTION
def test_a_row_of_zeros_exceeds(numerics: Numerics, distribution: str) -> None:
    inputs = draw(distribution, numerics.dtype)
    truth = attention(*inputs, mask=[CAUSAL])
    got, _ = kernel(inputs, truth, numerics)
    got[:, :, -1] = 0
    assert output_ratio(got, truth, numerics) > 1


@BY_PROFILE
def test_lse_in_another_base_exceeds(numerics: Numerics) -> None:
    inputs = draw("normal", numerics.dtype)
    truth = attention(*inputs)
    _, lse = kernel(inputs, truth, numerics)
    assert np.all(np.abs(lse / math.log(2) - truth.lse) > truth.tolerance(numerics).lse)


@BY_PROFILE
def test_anything_but_zero_in_an_empty_row_exceeds(numerics: Numerics) -> None:
    inputs = draw("normal", numerics.dtype)
    bound = attention(*inputs, kv_lengths=0).tolerance(numerics)
    assert np.all(bound.output == numerics.w_o)
    assert np.all(bound.lse == 0)
    assert numerics.w_o < 1e-7


@BY_PROFILE
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_bound_says_something(numerics: Numerics, distribution: str) -> None:
    """A bound as wide as the values would pass anything."""
    inputs = draw(distribution, numerics.dtype)
    bound = attention(*inputs, mask=[CAUSAL]).tolerance(numerics)
    assert bound.output.max() <= 0.05 * np.abs(inputs[2]).max()
    assert bound.lse.max() <= 1e-4


def small(query: float, keys: list[float], values: list[float], **options: Any) -> Truth:
    shape = (1, 1, len(keys), 1)
    return attention([[[[query]]]], np.reshape(keys, shape), np.reshape(values, shape), scale=1.0, **options)


def test_one_key_by_hand() -> None:
    """The softmax of one key is 1: its score does not matter, and only the value's way to the output rounds."""
    bound = small(3.0, [5.0], [2.0]).tolerance(FA_FP16)
    sums = 2.0**-24 * (1 + 3 + 3) * (2 + 2)
    assert bound.output.item() == pytest.approx(2.0**-11 * 2 + 2.0**-11 * 2 + sums + 2.0**-25 * 2 + 2.0**-25, rel=1e-12)
    scores = (2.0**-24 + (1 + 2) * 2.0**-24) * 15
    assert bound.lse.item() == pytest.approx(scores + 2.0**-24 * (1 + 3 + 8) + 5 * 15 * 2.0**-24, rel=1e-12)


def test_two_keys_by_hand() -> None:
    """Scores 1 and 0, values 1 and -1; the bias of 4 adds to both scores."""
    u, p = 2.0**-24, 1 / (1 + math.exp(-1))
    o, weights = 2 * p - 1, (p, 1 - p)
    spread = (1 - o, 1 + o)
    for bias, softcap in [(0.0, None), (4.0, None), (0.0, 1e6)]:
        bound = small(1.0, [1.0, 0.0], [1.0, -1.0], bias=np.array(bias), softcap=softcap).tolerance(STRICT_FP32)
        sizes, capped = (1.0, 0.0), (0.0, 0.0) if softcap is None else (1.0, 0.0)
        additions = [(u + 5 * u) * bias + 2 * u * sizes[j] * (bias > 0) for j in (0, 1)]
        per_key = [(u + 3 * u) * sizes[j] + additions[j] + 8 * u * capped[j] + 2 * u * j + 4 * u for j in (0, 1)]
        scores = sum(weights[j] * per_key[j] * spread[j] for j in (0, 1))
        underflow = 2.0**-126 * (2 / (1 + math.exp(-1)) + 1)
        expected = u * o + u + scores + u * (2 + 3 + 3) * (1 + o) + underflow
        assert bound.output.item() == pytest.approx(expected, rel=1e-9)


def test_alibi_counts_as_a_bias() -> None:
    bias = -0.5 * np.array([2.0, 1.0, 0.0])
    as_bias, as_alibi = (small(1.0, [1.0, 2.0, 0.5], [1.0, -1.0, 3.0], **o) for o in ({"bias": bias}, {"alibi": [0.5]}))
    assert as_alibi.tolerance(FA_BF16).output == pytest.approx(as_bias.tolerance(FA_BF16).output, rel=1e-12)
    assert as_alibi.tolerance(FA_BF16).lse == pytest.approx(as_bias.tolerance(FA_BF16).lse, rel=1e-12)


def test_sink_counts_as_a_key_of_value_zero() -> None:
    as_sink = small(1.0, [1.0, 2.0], [1.0, -1.0], sinks=[0.7])
    as_key = small(1.0, [1.0, 2.0, 0.0], [1.0, -1.0, 0.0], bias=np.array([0.0, 0.0, 0.7]))
    assert as_sink.output == pytest.approx(as_key.output, rel=1e-12)
    for numerics in [FLOAT64, *PROFILES]:
        one, two = as_sink.tolerance(numerics), as_key.tolerance(numerics)
        assert one.output == pytest.approx(two.output, rel=1e-9)
        assert one.lse == pytest.approx(two.lse, rel=1e-9)


def test_more_tiles_and_coarser_sums_widen_the_bound() -> None:
    truth = attention(*draw("normal", "float32"))
    default, tiles = truth.tolerance(STRICT_FP32), truth.tolerance(STRICT_FP32, tiles=S)
    sequential, truncating = (truth.tolerance(STRICT_FP32.with_sums(sums)) for sums in ("sequential", "truncating"))
    np.testing.assert_array_equal(default.output, truth.tolerance(STRICT_FP32, tiles=math.ceil(S / 64)).output)
    for wider, narrower in ((tiles, default), (sequential, default), (truncating, sequential)):
        assert np.all(wider.output > narrower.output)
        assert np.all(wider.lse > narrower.lse)


def test_bfloat16_inputs_are_taken() -> None:
    inputs = [array.astype(ml_dtypes.bfloat16) for array in draw("normal", "bfloat16")]
    truth = attention(*inputs)
    assert output_ratio(kernel(draw("normal", "bfloat16"), truth, FA_BF16)[0], truth, FA_BF16) <= 1


@BY_PROFILE
@BY_DISTRIBUTION
def test_terms_add_up_to_the_bound(numerics: Numerics, distribution: str) -> None:
    truth = attention(*draw(distribution, numerics.dtype), mask=[CAUSAL], sinks=[0.5, -3.0, 2.0, 0.0])
    for h, i in ((0, 0), (1, 5), (3, T - 1)):
        terms = output_terms(truth.facts(0, h, i, truth.usual_tiles), numerics)
        assert list(terms) == TERMS
        assert all((term >= 0).all() for term in terms.values())
        assert sum(terms.values()) == pytest.approx(truth.tolerance(numerics).output[0, h, i], rel=1e-12)


def test_terms_of_an_empty_row() -> None:
    truth = attention(*draw("normal", "bfloat16"), kv_lengths=0)
    terms = output_terms(truth.facts(0, 0, 0, 1), FA_BF16)
    assert all(not term.any() for name, term in terms.items() if name != "underflow")
    assert np.all(terms["underflow"] == FA_BF16.w_o)


@pytest.mark.parametrize(
    ("distribution", "numerics", "largest"),
    [
        ("uniform", FP32P_BF16, "output rounding"),
        ("cancelling", FA_BF16, "weight storage"),
        ("normal", STRICT_FP32, "products and score storage"),
        ("cancelling", STRICT_FP32, "sums"),
    ],
)
def test_the_largest_term_tells_the_cause(distribution: str, numerics: Numerics, largest: str) -> None:
    truth = attention(*draw(distribution, numerics.dtype))
    terms = output_terms(truth.facts(0, 1, 7, truth.usual_tiles), numerics)
    assert max(terms, key=lambda name: float(np.median(terms[name]))) == largest


def deviations(truth: Truth, numerics: Numerics) -> Any:
    rows = [output_deviation(truth.facts(*at, truth.usual_tiles), numerics) for at in np.ndindex(truth.lse.shape)]
    return np.reshape(rows, truth.output.shape)


@pytest.mark.parametrize("numerics", PROFILES[1:], ids=lambda numerics: f"{numerics.name}-{numerics.dtype}")
@BY_DISTRIBUTION
def test_errors_deviate_as_predicted(numerics: Numerics, distribution: str) -> None:
    """A thousand numbers and more: chance makes a few percent."""
    inputs = draw(distribution, numerics.dtype)
    truth = attention(*inputs, mask=[CAUSAL])
    ratio = (kernel(inputs, truth, numerics)[0] - truth.output) / deviations(truth, numerics)
    assert np.sqrt(np.square(ratio).mean()) <= 1.1


@pytest.mark.parametrize("numerics", [FP32P_BF16, FA_BF16], ids=lambda numerics: numerics.name)
def test_the_prediction_is_tight(numerics: Numerics) -> None:
    inputs = draw("uniform", numerics.dtype)
    truth = attention(*inputs, mask=[CAUSAL])
    ratio = (kernel(inputs, truth, numerics)[0] - truth.output) / deviations(truth, numerics)
    assert np.sqrt(np.square(ratio).mean()) >= 0.8


def test_a_second_rounding_deviates_more_than_predicted() -> None:
    inputs = draw("uniform", "bfloat16")
    truth = attention(*inputs)
    got, _ = kernel(inputs, truth, FP32P_BF16)
    twice = (got * 1.1).astype(np.float32).astype("bfloat16").astype(np.float64) / 1.1
    ratio = (twice - truth.output) / deviations(truth, FP32P_BF16)
    assert np.sqrt(np.square(ratio).mean()) > 1.2


def test_deviation_of_one_key_by_hand() -> None:
    """Of the value 3 times weight 1: bfloat16 is spaced by 2^-6 between 2 and 4."""
    truth = small(0.0, [1.0], [3.0])
    deviation = output_deviation(truth.facts(0, 0, 0, 1), FA_BF16).item()
    rest = 2.0**-24 * (1 + 3 + 3) * (3 + 3) + 2.0**-126 * 4
    assert deviation == pytest.approx(math.sqrt(2.0**-14 / 3 + 2.0**-16 * 9 / 3 + rest**2), rel=1e-12)
