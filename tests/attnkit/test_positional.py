"""Rotary positions against complex numbers, and the slopes of ALiBi against the published table."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit.positional import apply_rope, rope_tables

STYLES = ["half", "interleaved"]


def rotate(rope, x, positions):
    return apply_rope(rope, x, rope_tables(rope, x.shape[-1], positions, x))


def as_complex(x, dim, style):
    """Pair the features up as complex numbers, ``[..., T, dim / 2]``."""
    if style == "half":
        return x[..., : dim // 2] + 1j * x[..., dim // 2 : dim]
    return x[..., 0:dim:2] + 1j * x[..., 1:dim:2]


def angles(theta, dim, position):
    return np.array([position * theta ** (-2 * pair / dim) for pair in range(dim // 2)])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("dim", "theta"), [(None, 10000.0), (8, 10000.0), (4, 500.0), (2, 1e6)])
def test_a_pair_is_a_complex_number_times_a_phase(draw, style, dim, theta) -> None:
    x, positions = draw(2, 3, 5, 8), [0, 1, 2, 7, 100]
    turned = rotate(ak.RopeConfig(theta=theta, dim=dim, style=style), x, positions)
    size = dim or 8
    phases = np.exp(1j * np.stack([angles(theta, size, position) for position in positions]))
    np.testing.assert_allclose(as_complex(turned, size, style), as_complex(x, size, style) * phases, atol=1e-12)
    assert (turned[..., size:] == x[..., size:]).all()
    assert turned.shape == x.shape


def test_the_styles_pair_other_features() -> None:
    x = np.zeros((1, 1, 1, 4))
    x[..., 0] = 1.0
    half, interleaved = (rotate(ak.RopeConfig(style=style), x, [1])[0, 0, 0] for style in STYLES)
    np.testing.assert_allclose(half, [math.cos(1), 0, math.sin(1), 0])
    np.testing.assert_allclose(interleaved, [math.cos(1), math.sin(1), 0, 0])


@pytest.mark.parametrize("style", STYLES)
def test_position_zero_changes_nothing(draw, style) -> None:
    x = draw(1, 2, 3, 8)
    assert (rotate(ak.RopeConfig(style=style), x, [0, 0, 0]) == x).all()


@pytest.mark.parametrize("style", STYLES)
def test_positions_of_each_sequence(draw, style) -> None:
    rope, x = ak.RopeConfig(style=style), draw(2, 3, 4, 8)
    positions = np.array([[0, 1, 2, 3], [9, 4, 4, 11]])
    turned = rotate(rope, x, positions)
    for sequence in range(2):
        alone = rotate(rope, x[sequence : sequence + 1], positions[sequence])
        assert (turned[sequence] == alone[0]).all()
    cos, sin = rope_tables(rope, 8, positions, x)
    assert cos.shape == sin.shape == (2, 1, 4, 8)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dim", [None, 4])
def test_scores_depend_on_the_distance_alone(draw, style, dim) -> None:
    rope = ak.RopeConfig(style=style, dim=dim, theta=100.0)
    query, key = draw(1, 1, 4, 8), draw(1, 1, 4, 8)

    def scores(shift):
        positions = np.arange(4) + shift
        return rotate(rope, query, positions) @ rotate(rope, key, positions).swapaxes(-1, -2)

    np.testing.assert_allclose(scores(1000), scores(0), atol=1e-9)
    np.testing.assert_allclose(scores(-3), scores(0), atol=1e-12)
    assert not np.allclose(scores(0), query @ key.swapaxes(-1, -2))


@pytest.mark.parametrize("style", STYLES)
def test_lengths_are_kept(draw, style) -> None:
    x = draw(1, 1, 5, 8)
    turned = rotate(ak.RopeConfig(style=style), x, np.arange(5))
    np.testing.assert_allclose((turned**2).sum(axis=-1), (x**2).sum(axis=-1))


def test_angles_are_computed_in_float64_whatever_the_type() -> None:
    like = np.zeros((1, 1, 1, 4), np.float32)
    cos, sin = rope_tables(ak.RopeConfig(), 4, [100_000_003], like)
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_allclose(cos[0, 0], math.cos(100_000_003), rtol=1e-6)
    np.testing.assert_allclose(sin[0, [0, 2]], np.array([-1, 1]) * math.sin(100_000_003), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_type_and_the_argument_are_kept(draw, dtype) -> None:
    x = draw(1, 2, 3, 8, dtype=dtype)
    before = x.copy()
    turned = rotate(ak.RopeConfig(), x, np.arange(3))
    assert turned.dtype == dtype
    assert (x == before).all()
    assert not np.shares_memory(turned, x)


def test_no_tokens() -> None:
    assert rotate(ak.RopeConfig(), np.zeros((2, 3, 0, 8)), np.arange(0)).shape == (2, 3, 0, 8)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (12, [2.0**-power for power in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)]),
    ],
)
def test_published_slopes(heads, slopes) -> None:
    np.testing.assert_array_equal(ak.alibi_slopes(heads), np.array(slopes, np.float32))


@pytest.mark.parametrize("heads", range(1, 17))
def test_the_published_construction_of_slopes(heads) -> None:
    """``get_slopes`` of Press et al., written as they wrote it."""

    def power_of_two(count):
        start = 2 ** (-(2 ** -(math.log2(count) - 3)))
        return [start * start**index for index in range(count)]

    def slopes(count):
        if math.log2(count).is_integer():
            return power_of_two(count)
        closest = 2 ** math.floor(math.log2(count))
        return power_of_two(closest) + slopes(2 * closest)[0::2][: count - closest]

    found = ak.alibi_slopes(heads)
    assert found.shape == (heads,)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, slopes(heads), rtol=1e-6)


@pytest.mark.parametrize("heads", [0, -1])
def test_slopes_of_no_heads(heads) -> None:
    with pytest.raises(ak.ShapeError, match=f"num_heads must be >= 1, got {heads}"):
        ak.alibi_slopes(heads)
