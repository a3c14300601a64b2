"""Quality: what a bound on every element alone cannot see, and what only long or extreme calls show (A1, A6, A11-A16).

A fault that is smaller than the declared rounding hides below tau in every element. In the sum over many elements it
does not: errors of a correct implementation point both ways, and are as large as their roundings make them together.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size, ``E`` value head
size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from attnkit_conformance.cases import DTYPES, Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.numerics import EVERYTHING
from attnkit_conformance.compare import assert_within
from attnkit_conformance.draws import DRAWS
from attnkit_conformance.flat_cases import FlatCase
from attnkit_conformance.gradient_cases import GradientCase, graded
from attnkit_conformance.oracle import deviation_of
from attnkit_conformance.statistic import assert_size, assert_two_sided
from attnkit_conformance.structures import CAUSALLY, window
from attnkit_conformance.subject import Answer, Subject

HALVES: Final = ("bfloat16", "float16")
WIDE: Final = ("float32", "bfloat16", "float64")  # float16 does not reach far enough
FINITE: Final = (-1e4, -65504, -1e5, -2.5e5, -3e38, 65504, 3e38)
"""Scores that some implementations take for "hidden", or cannot hold."""

MANY = Case(label="many", heads=4, kv_heads=4, queries=40, keys=161, head_dim=80)  # 25 600 numbers
AVERAGE = FlatCase(label="average", values="positive", focus=0.05, heads=4, kv_heads=4, queries=40, keys=1300,
                   head_dim=80)  # fmt: skip
SPREAD = each_dtype(
    [
        replace(MANY, label="few", keys=16, draw="uniform"),
        replace(MANY, label="causal", draw="uniform", options=CAUSALLY),
        *(replace(MANY, draw=draw) for draw in ("uniform", "normal", "peaked", "ascending")),
    ],
    HALVES,
)
AVERAGES = each_dtype((AVERAGE, replace(AVERAGE, label="halves", values="halves")), HALVES)
SHARP = [
    *(Case(label="sharp", queries=9, keys=161, head_dim=80, draw=draw, options=CAUSALLY) for draw in DRAWS),
    *(Case(label="sharp", queries=9, keys=70, head_dim=size) for size in (40, 64, 96, 128)),
    Case(label="sharp-long", heads=1, kv_heads=1, queries=3, keys=2100, head_dim=128),
    replace(EVERYTHING, label="sharp-everything"),
]
ALIKE = each_dtype(
    Case(label="alike", queries=9, keys=161, head_dim=80, draw=draw, options=CAUSALLY)
    for draw in ("peaked", "ascending", "climbing", "huge")
)
# Not in float64: the oracle's own sums are of that type.
LONG_KEYS = each_dtype(
    (
        FlatCase(label=f"long-{values}", values=values, batch=1, queries=2, keys=16411, head_dim=64)
        for values in ("positive", "constant", "normal", "swamped")
    ),
    ("float32", *HALVES),
)
STRESS = each_dtype(
    (
        Case(label="stress-decode", batch=3, queries=1, keys=4099, head_dim=128),
        Case(label="stress-square", batch=1, queries=193, keys=193, head_dim=96, options=CAUSALLY),
        Case(label="stress-window", batch=1, queries=67, keys=1031, head_dim=80, options={"mask": window(127)}),
        Case(label="stress-many", batch=5, heads=3, kv_heads=3, queries=17, keys=65, head_dim=40),
        Case(label="stress-tall", batch=1, queries=257, keys=3, head_dim=64, options=CAUSALLY),
    ),
    DTYPES[:3:2],
)
ENDS = [
    FlatCase(label=f"all-at-{score:g}", values="positive", queries=3, keys=70,
             options={"bias": np.full((1, 1), score, np.float32)})
    for score in FINITE
]  # fmt: skip


class TestQuality(Checks):
    """Errors of either sign, as small as rounding makes them; and calls that are long, large or extreme."""

    @over(SPREAD)
    def test_errors_point_both_ways(self, backend: Subject, case: Case) -> None:
        """A11: results and weights are rounded to nearest; cut off, they would all be too small."""
        output = _true_output(backend, case)
        tau = case.tolerance(backend.numerics(case.dtype)).output
        assert_two_sided(output, case.truth.output, tau, what="output")

    @over(graded(each_dtype((replace(MANY, draw=draw) for draw in ("normal", "peaked")), HALVES)))
    def test_errors_of_gradients_point_both_ways(self, backend: Subject, case: GradientCase) -> None:
        """A11, A16: gradients are rounded to nearest, once."""
        _, found = case.differentiate(backend)
        case.assert_true(backend, found)
        bounds = case.gradient_tolerance(backend.numerics(case.dtype))
        for name, gradient in found.items():
            assert_two_sided(gradient, getattr(case.gradients, name), getattr(bounds, name), what=f"gradient of {name}")

    @over([*SPREAD, *AVERAGES])
    def test_errors_are_as_small_as_their_roundings(self, backend: Subject, case: Case) -> None:
        """A11: nothing else is rounded to 16 bits: no normaliser, no running sum, no part of a merge."""
        deviation = deviation_of(case.truth, backend.numerics(case.dtype))
        assert_size(_true_output(backend, case), case.truth.output, deviation, what="output")

    @over(each_dtype([replace(AVERAGE, label="levels")], HALVES))
    def test_the_exponential(self, backend: Subject, case: Case) -> None:
        """A11: no coarser than the weights are stored, between two levels of scores that are near each other."""
        levels = _two_levels(case)
        deviation = deviation_of(levels.truth, backend.numerics(case.dtype))
        assert_size(_true_output(backend, levels), levels.truth.output, deviation, what="output")

    @over(SHARP)
    def test_float32_is_float32(self, backend: Subject, case: Case) -> None:
        """A11: within one standard deviation of the random walk, of which tau allows four."""
        answer, bound = case.call(backend), case.tolerance(backend.numerics(case.dtype).at_random())
        backend.assert_true(case, answer)
        assert_within(answer.output, case.truth.output, bound.output, what="output, lam = 1")
        if answer.lse is not None:
            assert_within(answer.lse, case.truth.lse, bound.lse, what="lse, lam = 1")

    @over(ALIKE)
    def test_weights_sum_to_one(self, backend: Subject, case: Case) -> None:
        """A12: where all values are alike, no error of a score matters; that of a normaliser or a merge is bare."""
        query, key, value = case.arrays
        alike = case.holding((query, key, np.broadcast_to(value[:, :, :1], value.shape)))
        bound = alike.tolerance(backend.numerics(case.dtype).at_random())
        assert_within(alike.call(backend).output, alike.truth.output, bound.output, what="output, lam = 1")

    @over(LONG_KEYS)
    def test_long_keys(self, backend: Subject, case: Case) -> None:
        """A12: sums over 16 thousand equal weights; where the addends are alike too, their errors add up."""
        backend.assert_true(case, case.call(backend))

    @over(STRESS)
    def test_stress_shapes(self, backend: Subject, case: Case) -> None:
        """A14: the same answer twenty times, where threads and parts have most to get wrong."""
        first = case.call(backend)
        backend.assert_true(case, first)
        _true_output(backend, case)
        for _ in range(19):
            backend.assert_same(case, case.call(backend), first, what="of the same call, made again")

    @over(ENDS)
    def test_scores_at_the_ends(self, backend: Subject, case: Case) -> None:
        """A6: the same bias everywhere, however large, leaves all keys the same weight."""
        unmoved = replace(case, options={}).holding(case.arrays)
        backend.assert_true(unmoved, Answer(case.call(backend).output, None))

    @over(each_dtype([Case(label="steep", queries=33, keys=33, head_dim=64, options=CAUSALLY)], WIDE))
    def test_scores_far_apart(self, backend: Subject, case: Case) -> None:
        """A6, A12: products of 1e34, finite in the accumulation type, choose one key; -1e34 is a score as well."""
        query, key, value = map(plain, case.arrays)
        steep = case.holding((1e17 * query, 1e17 * key, value))
        backend.assert_true(steep, steep.call(backend))


def _true_output(backend: Subject, case: Case) -> Array:
    """Ask for the output alone, which is another path where a kernel has no log-sum-exp to give, and check it."""
    answer = backend.attention(case.arrays, case.options, lse=False)
    backend.assert_true(case, answer)
    return answer.output


def _two_levels(case: Case) -> Case:
    """Let each row see two levels of scores, and values of either sign on them.

    The scores of a level differ a little, so that their weights are not all rounded alike.
    """
    rng = case.rng("levels")
    query, key, value = (np.zeros_like(plain(array)) for array in case.arrays)
    sign = np.where(np.arange(case.keys) < case.keys // 2, 1, -1)
    key[..., 0], key[..., 1] = sign, 0.05 * rng.random(key.shape[:3])
    query[..., 0], query[..., 1] = rng.uniform(-0.2, 0.2, query.shape[:3]), 1
    value[...] = sign[:, None] * (1 + 0.5 * rng.random(value.shape))
    return case.holding((query * np.sqrt(case.head_dim), key, value))
