"""Ways to sum: each gives the product of matrices, and rounds as it says."""

from __future__ import annotations

import numpy as np
import pytest

from attnkit_conformance.calibration.sums import blocked, fused, pairwise, sequential, truncating

WAYS = (blocked, pairwise, sequential, fused, truncating)
ONE, SPACING = np.float32(1), np.float32(2.0**-23)


@pytest.mark.parametrize("dot", WAYS)
@pytest.mark.parametrize("size", [1, 2, 7, 128, 300])
def test_it_is_the_product(dot, size: int) -> None:
    rng = np.random.default_rng(size)
    left = rng.standard_normal((2, 3, size)).astype(np.float32)
    right = rng.standard_normal((2, size, 4)).astype(np.float32)
    found = dot(left, right)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    assert found.dtype == np.float32
    assert (np.abs(found - exact) <= 2.0**-23 * (size + 1) * (np.abs(left) @ np.abs(right))).all()


@pytest.mark.parametrize("dot", WAYS)
def test_small_integers_are_exact(dot) -> None:
    left, right = np.arange(24, dtype=np.float32).reshape(1, 2, 12), np.arange(60, dtype=np.float32).reshape(1, 12, 5)
    np.testing.assert_array_equal(dot(left, right), left @ right)


def test_cutting_off_never_rounds_up() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.random((1, 4, 90), np.float32), rng.random((1, 90, 4), np.float32)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    for sign in (1, -1):
        error = np.abs(exact) - np.abs(truncating(left, np.float32(sign) * right))
        assert (error > 0).all()
        assert error.mean() > 5 * np.abs(sequential(left, right) - exact).mean()


@pytest.mark.parametrize(("spacings", "lost"), [(0.49, {sequential, fused, truncating}), (0.98, {truncating})])
def test_what_is_added_to_one_and_lost(spacings: float, lost: set[object]) -> None:
    addends = np.full((1, 1, 1000), np.float32(spacings) * SPACING)
    addends[..., 0] = 1
    for dot in (sequential, fused, truncating):
        total = dot(addends, np.ones((1, 1000, 1), np.float32)).item()
        assert (total == ONE) == (dot in lost)


def test_a_fused_step_rounds_once() -> None:
    left, right = np.float32([[[1, 1 + SPACING]]]), np.float32([[[-1], [1 + SPACING]]])
    assert fused(left, right).item() == np.float32(2 * SPACING + SPACING * SPACING)
    assert sequential(left, right).item() == 2 * SPACING


@pytest.mark.parametrize("dot", [sequential, truncating])
def test_float64_has_a_wider_type_too(dot) -> None:
    left, right = np.full((1, 1, 50), 0.1), np.full((1, 50, 1), 0.7)
    assert dot(left, right).dtype == np.float64
    assert dot(left, right).item() == pytest.approx(3.5, rel=1e-13)
