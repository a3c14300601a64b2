"""Which path takes what, what is refused, and how a cache's pages are stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit_numpy import decode
from attnkit_numpy.backend import NumpyBackend


def arrays(rows: int, keys: int, heads: int = 4, kv_heads: int = 2, head_dim: int = 64) -> list[Any]:
    return [np.ones((1, heads, rows, head_dim), np.float32), *(np.ones((1, kv_heads, keys, head_dim), np.float32),) * 2]


def path_of(*sizes: int) -> str:
    path = ak.explain(*arrays(*sizes)).path
    assert path is not None
    return path


def test_few_rows_decode_and_many_are_tiled() -> None:
    assert path_of(1, 500) == "decode"
    assert path_of(2048, 2048) == "tiled"


def test_decode_refuses_many_rows_with_a_reason() -> None:
    rows = decode.MOST_ROWS // 2 + 1
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*arrays(rows, 8), backend="numpy:decode")
    (reason,) = caught.value.reasons["numpy:decode"]
    assert (reason.code, reason.field) == ("path", "query_length")
    ak.attention(*arrays(rows - 1, 8), backend="numpy:decode")


def test_gradients_are_refused_and_nothing_else() -> None:
    capabilities = NumpyBackend().capabilities()
    declared = {name: getattr(capabilities, name) for name in capabilities.__slots__}
    assert [name for name, value in declared.items() if value is False] == ["grad"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_pages_round_trip(dtype: str) -> None:
    backend = NumpyBackend()
    pages = backend.allocate(3, 4, num_kv_heads=2, head_dim=5, value_dim=3, dtype=dtype)
    assert pages.dtype == dtype
    rng = np.random.default_rng(0)
    key, value = (rng.standard_normal((2, 2, 3, size)).astype(np.float32) for size in (5, 3))
    slots = np.array([[7, 8, 9], [0, -1, 5]])
    backend.write(pages, slots, key, value)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for stored, array in zip(backend.gather(pages, slots), (key, value), strict=True):
        expected = array.astype(kind)
        expected[1, :, 1] = 0
        np.testing.assert_array_equal(stored.astype(np.float64), expected.astype(np.float64))


def test_overflow_on_storing_gives_infinity_without_a_warning() -> None:
    backend = NumpyBackend()
    pages = backend.allocate(1, 1, num_kv_heads=1, head_dim=1, value_dim=1, dtype="float16")
    backend.write(pages, np.array([[0]]), *(np.full((1, 1, 1, 1), 1e6, np.float32),) * 2)
    assert np.isinf(pages.key).all()
