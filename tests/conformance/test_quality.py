"""The statistics of the quality level: what chance makes, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from attnkit_conformance.checks.quality import AVERAGES, SPREAD, STRESS
from attnkit_conformance.flat_cases import VALUES, FlatCase
from attnkit_conformance.measuring import Mismatch, measuring
from attnkit_conformance.statistic import DIRECTION, EXCESS, assert_size, assert_two_sided

RNG = np.random.default_rng(0)
TRUTH = RNG.standard_normal(20_000)
NOISE = RNG.uniform(-1, 1, TRUTH.size)


def test_noise_has_no_direction() -> None:
    with measuring() as notes:
        assert_two_sided(TRUTH + NOISE, TRUTH, np.ones_like(TRUTH), what="output")
    assert 0 < notes[0].ratio < 0.5
    assert notes[0].tau == DIRECTION


@pytest.mark.parametrize("lean", [-0.05, 0.05])
def test_a_lean_towards_or_away_from_zero_shows(lean: float) -> None:
    with measuring() as notes, pytest.raises(Mismatch, match="direction of the errors of output: ") as caught:
        assert_two_sided(TRUTH + NOISE + lean * np.sign(TRUTH), TRUTH, np.ones_like(TRUTH), what="output")
    assert notes[0].ratio > 1
    assert np.sign(notes[0].actual) == np.sign(lean)
    assert caught.value.tau is not None


def test_a_lean_the_same_way_everywhere_is_no_truncation() -> None:
    assert_two_sided(TRUTH + NOISE + 0.05, TRUTH, np.ones_like(TRUTH), what="output")


def test_errors_of_the_predicted_size_pass_and_larger_ones_do_not() -> None:
    deviation = np.full_like(TRUTH, 1 / np.sqrt(3))
    assert_size(TRUTH + NOISE, TRUTH, deviation, what="output")
    with pytest.raises(Mismatch, match=f"size of the errors of output: 1.2 .* at most {EXCESS}"):
        assert_size(TRUTH + 1.2 * NOISE, TRUTH, deviation, what="output")


def test_not_a_number_never_passes() -> None:
    broken = np.where(np.arange(TRUTH.size) == 7, np.nan, TRUTH)
    for check in (assert_size, assert_two_sided):
        with pytest.raises(Mismatch):
            check(broken, TRUTH, np.ones_like(TRUTH), what="output")


def test_statistics_are_over_enough_numbers() -> None:
    assert all(np.prod(case.output_shape) >= 20_000 for case in (*SPREAD, *AVERAGES))


def test_head_sizes_that_hide_roundings_do_not_stand_alone() -> None:
    for cases in (SPREAD, AVERAGES, STRESS):
        assert any(np.log2(case.head_dim) % 2 for case in cases)


@pytest.mark.parametrize("values", VALUES)
def test_flat_cases_weigh_all_keys_the_same(values: str) -> None:
    case = FlatCase(label="flat", values=values, keys=50, queries=2)
    np.testing.assert_allclose(case.truth.weights, 1 / 50)
    again = FlatCase(label="flat", values=values, keys=50, queries=2)
    np.testing.assert_array_equal(case.arrays[2], again.arrays[2])
    assert not np.array_equal(case.arrays[2], FlatCase(label="flat", values=values, keys=50, seed=1).arrays[2])


def test_values_are_what_they_are_called() -> None:
    shape = (1, 2, 51, 8)
    positive, constant, halves, _, swamped, grazed = (draw(np.random.default_rng(0), shape) for draw in VALUES.values())
    assert positive.min() >= 1
    assert positive.max() < 4
    assert (constant == constant[:, :, :1]).all()
    np.testing.assert_array_equal(np.sign(halves[0, 0, :, 0]), [1] * 25 + [-1] * 26)
    for array, half in ((swamped, True), (grazed, False)):
        large, small = np.float32(array[:, :, :1]), np.float32(array[:, :, 1:])
        assert (large + small == large).all() == half
        assert (np.spacing(large) > small).all()
