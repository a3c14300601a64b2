"""Tokens written into slots and copied out of them: in runs, scattered, converted, and from memory of any order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit_numpy.backend import NumpyBackend
from attnkit_numpy.storage import is_scattered

SLOTS = {
    "nothing": np.zeros((2, 0), np.int64),
    "one run": np.arange(5, 25)[None],
    "one token each": np.array([[7], [2], [31], [0], [16]]),
    "one token of some": np.array([[7], [-1], [31], [-1], [16]]),
    "runs and padding": np.array([[7, 8, 9, 20], [0, -1, 5, -1]]),
    "backwards": np.arange(39, -1, -1)[None],
    "padding alone": np.full((3, 2), -1),
}


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS.keys())
@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32", "float64"])
def test_tokens_round_trip(slots: Any, stored: str) -> None:
    backend = NumpyBackend()
    plane = backend.allocate((2, 40, 3), stored)
    assert plane.dtype == (ml_dtypes.bfloat16 if stored == "bfloat16" else stored)
    assert not plane.any()
    tokens = np.random.default_rng(0).standard_normal((len(slots), 2, slots.shape[1], 3)).astype(np.float32)
    backend.write(plane, slots, tokens)
    expected = tokens.astype(plane.dtype)
    expected.swapaxes(1, 2)[slots < 0] = 0
    np.testing.assert_array_equal(backend.gather(plane, slots).astype(np.float64), expected.astype(np.float64))
    untouched = np.setdiff1d(np.arange(40), slots)
    assert not plane[:, untouched].any()


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_codes_round_trip(kind: str) -> None:
    backend, slots = NumpyBackend(), SLOTS["runs and padding"]
    plane = backend.allocate((2, 40, 3), kind)
    codes = np.random.default_rng(1).integers(0, 100, (2, 2, 4, 3)).astype(kind)
    backend.write(plane, slots, codes)
    assert plane.dtype == kind
    np.testing.assert_array_equal(backend.gather(plane, slots)[0], codes[0])


def test_slots_are_told_apart_by_the_length_of_their_runs() -> None:
    scattered = [name for name, slots in SLOTS.items() if is_scattered(slots)]
    assert scattered == ["one token each", "one token of some", "runs and padding", "backwards", "padding alone"]
    assert not is_scattered(np.arange(4096)[None])
    assert not is_scattered(np.arange(4096).reshape(4, -1))


@pytest.mark.parametrize("slots", [SLOTS["one run"], SLOTS["backwards"]], ids=["one run", "scattered"])
def test_tokens_come_from_memory_of_any_order(slots: Any) -> None:
    backend = NumpyBackend()
    tokens = np.random.default_rng(2).standard_normal((3, slots.shape[1], 2, 1)).astype(np.float32).T[:, ::-1]
    tokens.flags.writeable = False
    plane = backend.allocate((2, 40, 3), "float32")
    backend.write(plane, slots, tokens)
    np.testing.assert_array_equal(backend.gather(plane, slots), tokens)


def test_a_copy_is_a_copy() -> None:
    backend = NumpyBackend()
    plane = backend.allocate((1, 8, 2), "float32")
    backend.gather(plane, np.arange(8)[None])[...] = 1
    assert not plane.any()


def test_a_plane_without_slots_gives_zeros() -> None:
    plane = NumpyBackend().allocate((2, 0, 3), "float32")
    found = NumpyBackend().gather(plane, np.full((2, 4), -1))
    assert found.shape == (2, 2, 4, 3)
    assert not found.any()


@pytest.mark.parametrize("tokens", [1, 9])
def test_overflow_on_storing_gives_infinity_without_a_warning(tokens: int) -> None:
    backend = NumpyBackend()
    plane = backend.allocate((1, 40, 1), "float16")
    backend.write(plane, 2 * np.arange(tokens)[None], np.full((1, 1, tokens, 1), 1e6, np.float32))
    assert np.isinf(plane[0, : 2 * tokens : 2]).all()


def test_a_cache_reads_what_it_stored() -> None:
    config = ak.KVCacheConfig(batch_size=5, num_kv_heads=2, head_dim=3, layout="paged", page_size=2)
    cache = ak.make_cache(config, backend="numpy")
    tokens = np.random.default_rng(3).standard_normal((5, 2, 7, 3)).astype(np.float32)
    for i in range(7):
        cache[0].append(tokens[:, :, i : i + 1], -tokens[:, :, i : i + 1])
    key, value = cache[0].read()
    np.testing.assert_array_equal(key, tokens)
    np.testing.assert_array_equal(value, -tokens)
