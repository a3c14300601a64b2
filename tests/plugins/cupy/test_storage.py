"""Tokens written into slots and copied out of them, by kernels.

Axes: ``B`` sequences, ``K`` key/value heads, ``N`` slots, ``T`` new tokens, ``F`` features.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnkit_cupy import storage
from attnkit_cupy.storage import Mirrors

BATCH, HEADS, SLOTS, TOKENS, FEATURES = 3, 2, 40, 5, 7


@pytest.fixture
def slots() -> Any:
    """Some slots, no two alike, in any order, with gaps."""
    found = np.random.default_rng(1).permutation(SLOTS)[: BATCH * TOKENS].reshape(BATCH, TOKENS)
    found[1, 2] = found[2, -2:] = -1
    return found


def tokens_of(dtype: Any, shape: tuple[int, ...] = (BATCH, HEADS, TOKENS, FEATURES)) -> Any:
    rng = np.random.default_rng(2)
    return (100 * rng.standard_normal(shape)).astype(dtype)


def expected(plane: Any, slots: Any, tokens: Any) -> Any:
    plane = plane.copy()
    for b, t in np.argwhere(slots >= 0):
        plane[:, slots[b, t]] = tokens[b, :, t].astype(plane.dtype)
    return plane


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (np.float32, np.float32),
        (np.float16, np.float16),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (np.int8, np.int8),
        (np.uint8, np.uint8),
        (np.float64, np.float64),
        (np.float64, np.float16),
        (np.float32, ml_dtypes.bfloat16),
        (ml_dtypes.bfloat16, np.float32),
    ],
)
def test_tokens_come_back_as_they_were_stored(runtime: Any, slots: Any, given: Any, stored: Any) -> None:
    plane, tokens = np.full((HEADS, SLOTS, FEATURES), 3, stored), tokens_of(given)
    wanted = expected(plane, slots, tokens)
    storage.write(runtime, plane, slots, tokens)
    assert plane.tobytes() == wanted.tobytes()
    found = storage.gather(runtime, plane, slots)
    assert found.dtype == stored
    zeros = np.zeros_like(tokens).astype(stored)
    kept = np.where((slots >= 0)[:, None, :, None], tokens.astype(stored), zeros)
    assert found.tobytes() == kept.tobytes()


@pytest.mark.parametrize(
    "cut",
    [
        lambda array: array[:, :, ::-1],
        lambda array: array[..., ::-1],
        lambda array: np.broadcast_to(array[:, :1], array.shape),
        lambda array: np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    ],
)
def test_tokens_may_lie_in_any_way(runtime: Any, slots: Any, cut: Any) -> None:
    plane, tokens = np.zeros((HEADS, SLOTS, FEATURES), np.float32), cut(tokens_of(np.float32))
    storage.write(runtime, plane, slots, tokens)
    assert plane.tobytes() == expected(np.zeros_like(plane), slots, tokens).tobytes()


def test_numbers_that_overflow_become_infinite_without_a_warning(runtime: Any) -> None:
    plane = np.zeros((1, 2, 1), np.float16)
    storage.write(runtime, plane, np.array([[0, 1]]), np.array([[[[1e9], [-1e9]]]], np.float32))
    assert plane.ravel().tolist() == [np.inf, -np.inf]


def test_more_sequences_than_a_grid_has_planes(runtime: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(storage, "_MOST_BLOCKS", 2)
    slots, tokens = np.arange(5)[:, None], tokens_of(np.float32, (5, 1, 1, 3))
    plane = np.zeros((1, 5, 3), np.float32)
    storage.write(runtime, plane, slots, tokens)
    np.testing.assert_array_equal(plane[0], tokens[:, 0, 0])
    np.testing.assert_array_equal(storage.gather(runtime, plane, slots), tokens)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)])
def test_nothing_is_moved_without_a_launch(runtime: Any, shape: tuple[int, ...]) -> None:
    batch, heads, count, features = shape
    plane, slots = np.ones((heads, 4, features), np.float32), np.zeros((batch, count), np.int64)
    storage.write(runtime, plane, slots, np.zeros(shape, np.float32))
    assert (plane == 1).all()
    assert storage.gather(runtime, plane, slots).shape == shape


class Device:
    """A runtime that counts what is sent to it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.place = "stream 1"
        self.xp = self

    def asarray(self, array: Any) -> Any:
        self.sent.append(array.copy())
        return self.sent[-1]


def test_slots_of_a_step_are_sent_once() -> None:
    mirrors, device, slots = Mirrors(), Device(), np.arange(4)
    first = mirrors.of(slots, device)
    assert mirrors.of(slots, device) is first
    assert len(device.sent) == 1
    assert mirrors.of(slots.copy(), device) is not first
    device.place = "stream 2"
    assert mirrors.of(slots, device) is not first, "this stream does not wait for the copies of the other"


def test_slots_that_have_changed_are_sent_again() -> None:
    mirrors, device, slots = Mirrors(), Device(), np.arange(4)
    first = mirrors.of(slots, device)
    slots[0] = 9
    np.testing.assert_array_equal(mirrors.of(slots, device), [9, 1, 2, 3])
    np.testing.assert_array_equal(first, [0, 1, 2, 3])


def test_old_mirrors_are_given_up() -> None:
    mirrors, device = Mirrors(), Device()
    for number in range(3 * storage._REMEMBERED):
        mirrors.of(np.array([number]), device)
    assert len(mirrors._found) == storage._REMEMBERED
