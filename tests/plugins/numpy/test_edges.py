"""Empty calls and rows, extreme magnitudes, and what is said of types (contract A7, A11, A12)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


@pytest.mark.parametrize("sizes", [(0, 4, 2, 3, 5), (2, 0, 0, 3, 5), (2, 4, 2, 0, 5), (2, 4, 2, 3, 0), (0, 0, 0, 0, 0)])
@pytest.mark.parametrize(
    "options", [{}, {"mask": CAUSAL}, {"kv_lengths": 0, "mask": ak.Mask.window(2)}, {"alibi": True}]
)
def test_empty_axes(path: str, sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    batch, heads, kv_heads, rows, keys = sizes
    if "alibi" in options:
        options = {"alibi": np.ones(heads, np.float32), "sinks": np.ones(heads, np.float32)}
    query, key, value = (np.ones(shape, np.float32) for shape in ((rows, 8), (keys, 8), (keys, 3)))
    query = np.broadcast_to(query, (batch, heads, rows, 8))
    key, value = (np.broadcast_to(array, (batch, kv_heads, *array.shape)) for array in (key, value))
    output, lse = ak.attention_with_lse(query, key, value, **options, backend=f"numpy:{path}")
    assert output.shape == (batch, heads, rows, 3)
    assert lse.shape == (batch, heads, rows)
    if not keys or "kv_lengths" in options:
        np.testing.assert_array_equal(output, 0)
        np.testing.assert_array_equal(lse, 1 if "sinks" in options else -np.inf)


EMPTY_ROWS: dict[str, dict[str, Any]] = {
    "before every key": {"mask": CAUSAL, "query_offset": -9},
    "window beyond the keys": {"mask": ak.Mask.window(2), "query_offset": 50},
    "hidden by a dense mask": {"mask": ak.Mask.dense(np.zeros((1, 1), bool))},
    "hidden by documents": {"mask": ak.Mask.documents(np.zeros(4, int), np.ones(6, int))},
    "hidden by the bias": {"bias": np.full((1, 1), -np.inf, np.float32)},
    "no keys in the sequence": {"kv_lengths": 0},
    "padding": {"query_lengths": 0},
}


@pytest.mark.parametrize("options", EMPTY_ROWS.values(), ids=EMPTY_ROWS.keys())
def test_empty_rows(calls: Any, path: str, options: dict[str, Any]) -> None:
    arrays = calls.draw(np.random.default_rng(0), "normal", (2, 2, 1, 4, 6, 8, 8), "float32")
    output, lse = ak.attention_with_lse(*arrays, **options, backend=f"numpy:{path}")
    np.testing.assert_array_equal(output, 0)
    np.testing.assert_array_equal(lse, -np.inf)
    sinks = np.array([0.3, -7.0], np.float32)
    output, lse = ak.attention_with_lse(*arrays, **options, sinks=sinks, backend=f"numpy:{path}")
    np.testing.assert_array_equal(output, 0)
    np.testing.assert_array_equal(lse, np.broadcast_to(sinks[:, None], lse.shape))


def test_some_rows_empty_in_a_tile_that_others_see(calls: Any, path: str) -> None:
    arrays = calls.draw(np.random.default_rng(1), "normal", (1, 1, 1, 12, 6, 8, 8), "float32")
    case = calls.Case(arrays, {"mask": CAUSAL})
    found = calls.run(case, path)
    calls.check(case, found)
    np.testing.assert_array_equal(found.lse[0, 0, :6], -np.inf)


EXTREMES: dict[str, tuple[float, float, float | None, float | None]] = {
    # query times, key times, scale, softcap
    "tiny times huge": (1e-30, 1e30, None, None),
    "huge times tiny": (1e30, 1e-30, None, None),
    "scale undoes a huge product": (1e18, 1e18, 1e-37, None),
    "scale is no float32 number, small": (1e20, 1e17, 1e-38, None),
    "scale is below float32": (1e18, 1e18, 1e-42, None),
    "scale is above float32": (1e-20, 1e-20, 1e39, None),
    "scaled query would overflow": (1e30, 1e-34, 1e10, None),
    "scores near the largest number": (1e18, 1e18, 1.0, None),
    "softcap below float32": (1.0, 1.0, None, 1e-42),
    "softcap above float32": (1.0, 1.0, None, 1e39),
    "negative scale": (1e18, 1e18, -1e-37, None),
}


@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES.keys())
def test_extreme_magnitudes(calls: Any, path: str, extreme: tuple[float, float, float | None, float | None]) -> None:
    query_times, key_times, scale, softcap = extreme
    query, key, value = calls.draw(np.random.default_rng(2), "normal", (1, 1, 1, 9, 30, 8, 8), "float64")
    arrays = [array.astype(np.float32) for array in (query_times * query, key_times * key, value)]
    case = calls.Case(arrays, {"mask": CAUSAL, "scale": scale, "softcap": softcap})
    calls.check(case, calls.run(case, path))


def test_partial_sums_near_the_largest_number_that_cancel(calls: Any, path: str) -> None:
    """Finite products and sums stay finite: nothing larger than the score itself is ever formed."""
    query = np.full((1, 1, 2, 2), 1e19, np.float32)
    key = np.array([[3e19, -3e19], [0, 0], [-3e19, 3e19], [1e-20, 2e-20]], np.float32)[None, None]
    value = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    case = calls.Case([query, key, value], {"scale": 1.0})
    calls.check(case, calls.run(case, path))


def test_large_finite_bias_is_plain_arithmetic(calls: Any, path: str) -> None:
    arrays = calls.draw(np.random.default_rng(3), "normal", (1, 2, 1, 5, 40, 8, 8), "float32")
    bias = np.full((5, 40), -3.4e38, np.float32)
    case = calls.Case(arrays, {"bias": bias})
    found = calls.run(case, path)
    assert np.isfinite(found.output).all()
    calls.check(case, found)


def test_half_precision_products_that_float16_cannot_hold(calls: Any, path: str) -> None:
    query, key, value = calls.draw(np.random.default_rng(4), "normal", (1, 2, 2, 4, 20, 64, 64), "float64")
    arrays = [array.astype(np.float16) for array in (300 * query, 300 * key, value)]
    case = calls.Case(arrays, {})
    calls.check(case, calls.run(case, path))


@pytest.mark.parametrize("scalar", [float, np.float64, np.float32])
def test_scalars_promote_nothing(path: str, scalar: type) -> None:
    query = np.ones((1, 1, 3, 4), np.float32)
    output, lse = ak.attention_with_lse(
        query, query, query, scale=scalar(0.5), softcap=scalar(2), bias=np.zeros((3, 3)), backend=f"numpy:{path}"
    )
    assert output.dtype == lse.dtype == np.float32
