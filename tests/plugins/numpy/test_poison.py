"""Dead and hidden keys leave no trace, bit for bit (contract A8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit_numpy import repair

CAUSAL = ak.Mask.causal()
INF, NAN = np.inf, np.nan
SIZES = (2, 4, 2, 4, 40, 16, 12)
POISONS = {"nan": NAN, "inf": INF, "-inf": -INF, "largest": 3.4e38, "-largest": -3.4e38, "large": 1e30}

pytestmark = pytest.mark.usefixtures("small_tiles")


def hidden_from_all(arrays: list[Any], options: dict[str, Any]) -> Any:
    """Give the keys that no row of any query head sees, ``[B, K, S]``."""
    shown = reference.attention(*arrays, **options).problem.shown
    batch, heads, _, keys = shown.shape
    kv_heads = arrays[1].shape[1]
    return ~shown.any(axis=2).reshape(batch, kv_heads, heads // kv_heads, keys).any(axis=2)


def poisoned(arrays: list[Any], where: Any, poison: float, which: str) -> list[Any]:
    query, key, value = (array.copy() for array in arrays)
    if "key" in which:
        key[where] = poison
    if "value" in which:
        value[where] = poison
    return [query, key, value]


BIAS = np.zeros((1, 1, 1, 40), np.float32)
BIAS[..., 3:9] = -INF
KEEP = np.ones((1, 1, 1, 40), bool)
KEEP[..., 5:30:3] = False
HIDING: dict[str, dict[str, Any]] = {
    "lengths": {"kv_lengths": np.array([40, 7])},
    "lengths and causal": {"kv_lengths": np.array([3, 31]), "mask": CAUSAL},
    "causal": {"mask": CAUSAL, "query_offset": 10},
    "window": {"mask": ak.Mask.window(6)},
    "chunks": {"mask": ak.Mask.chunked(7)},
    "dense": {"mask": ak.Mask.dense(KEEP)},
    "documents": {"mask": ak.Mask.documents(np.zeros(4, int), np.arange(40) // 9)},
    "bias": {"bias": BIAS},
    "bias and soft-cap": {"bias": BIAS, "softcap": 5.0},
    "bias and ALiBi": {"bias": BIAS, "alibi": np.full(4, 0.3, np.float32)},
    "sinks and window": {"mask": ak.Mask.window(6), "sinks": np.ones(4, np.float32)},
}


@pytest.mark.parametrize("options", HIDING.values(), ids=HIDING.keys())
@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS.keys())
def test_hidden_keys_change_no_bit(calls: Any, path: str, options: dict[str, Any], poison: float) -> None:
    arrays = calls.draw(np.random.default_rng(0), "normal", SIZES, "float32")
    where = hidden_from_all(arrays, options)
    assert where.any()
    clean = calls.run(calls.Case(arrays, options), path)
    for which in ("key", "value", "key and value"):
        calls.assert_same_bits(clean, calls.run(calls.Case(poisoned(arrays, where, poison, which), options), path))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_hidden_keys_of_other_dtypes_change_no_bit(calls: Any, path: str, dtype: str) -> None:
    arrays = calls.draw(np.random.default_rng(1), "normal", SIZES, dtype)
    options = {"mask": ak.Mask.window(5), "kv_lengths": np.array([40, 11])}
    where = hidden_from_all(arrays, options)
    clean = calls.run(calls.Case(arrays, options), path)
    for poison in (NAN, -INF):
        found = calls.run(calls.Case(poisoned(arrays, where, poison, "key and value"), options), path)
        calls.assert_same_bits(clean, found)


@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("poison", [NAN, INF, 3.4e38])
def test_rows_that_do_not_see_a_key_do_not_feel_it(calls: Any, path: str, which: str, poison: float) -> None:
    """A row that sees what is not finite shows it; the row before does not change by a bit."""
    arrays = calls.draw(np.random.default_rng(2), "normal", SIZES, "float32")
    case = calls.Case(arrays, {"mask": CAUSAL})
    clean = calls.run(case, path)
    where = np.zeros((2, 2, 40), bool)
    where[1, 0, -2:] = True  # rows 2 and 3 of query heads 0 and 1
    found = calls.run(calls.Case(poisoned(arrays, where, poison, which), case.options), path)
    changed = found.output.view(np.uint32) != clean.output.view(np.uint32)
    expected = np.zeros(changed.shape, bool)
    expected[1, :2, 2:] = True
    assert not changed[~expected].any()
    assert changed[expected].any()


def test_a_row_that_sees_infinity_has_ieee_semantics(calls: Any, path: str) -> None:
    query, key, value = calls.draw(np.random.default_rng(3), "normal", (1, 1, 1, 3, 8, 4, 4), "float32")
    value[0, 0, 0, 1] = INF  # seen by all
    value[0, 0, 7, :] = NAN  # seen by the last row alone
    output = ak.attention(query, key, value, mask=CAUSAL, backend=f"numpy:{path}")
    np.testing.assert_array_equal(output[0, 0, :2, 1], INF)
    assert np.isfinite(output[0, 0, :2][:, [0, 2, 3]]).all()
    assert np.isnan(output[0, 0, 2]).all()


def test_a_key_of_minus_infinity_weighs_nothing(calls: Any, path: str) -> None:
    query, key, value = calls.draw(np.random.default_rng(4), "uniform", (1, 1, 1, 3, 8, 4, 4), "float32")
    key[0, 0, 2] = -INF
    keep = np.arange(8) != 2
    found = ak.attention(query, key, value, backend=f"numpy:{path}")
    expected = ak.attention(query, key[:, :, keep], value[:, :, keep], backend=f"numpy:{path}")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_nan_in_a_query_stays_in_its_row(calls: Any, path: str) -> None:
    arrays = calls.draw(np.random.default_rng(5), "normal", SIZES, "float32")
    clean = calls.run(calls.Case(arrays, {"mask": CAUSAL}), path)
    arrays[0][1, 2, 1, 3] = NAN
    found = calls.run(calls.Case(arrays, {"mask": CAUSAL}), path)
    np.testing.assert_array_equal(np.isnan(found.output).all(axis=-1), np.isnan(found.output).any(axis=-1))
    rows = np.isnan(found.output).any(axis=-1)
    assert rows[1, 2, 1]
    assert rows.sum() == 1
    np.testing.assert_allclose(found.output[~rows], clean.output[~rows], rtol=1e-5, atol=1e-6)


def test_padding_queries_are_not_read(calls: Any, path: str) -> None:
    arrays = calls.draw(np.random.default_rng(6), "normal", SIZES, "float32")
    case = calls.Case(arrays, {"mask": CAUSAL, "query_lengths": np.array([4, 2])})
    clean = calls.run(case, path)
    arrays[0][1, :, 2:] = NAN
    calls.assert_same_bits(clean, calls.run(case, path))


@pytest.mark.parametrize("rows", [4, 60])
def test_values_so_large_that_a_base_of_zero_overflows(calls: Any, rows: int) -> None:
    """Rows that overflow although no product of a weight and a value does are computed again."""
    query, key, value = calls.draw(np.random.default_rng(7), "normal", (1, 2, 1, rows, 80, 16, 8), "float32")
    case = calls.Case([5 * query, key, (value * 1e33).astype(np.float32)], {"mask": CAUSAL})
    found = calls.run(case, "tiled")
    assert np.isfinite(found.output).all()
    calls.check(case, found)


def test_nan_everywhere_is_not_computed_row_by_row(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [np.full_like(array, NAN) for array in calls.draw(np.random.default_rng(8), "normal", SIZES, "float32")]
    monkeypatch.setattr(repair, "_solve_row", None)
    found = calls.run(calls.Case(arrays, {"mask": CAUSAL}), "tiled")
    assert np.isnan(found.output).all()
    assert np.isnan(found.lse).all()


@pytest.mark.parametrize("kept", ["key", "value"])
def test_nan_spreads_to_the_row_or_down_the_column(calls: Any, path: str, kept: str) -> None:
    """Among rows that see one NaN and not another: in a key it takes the row, in a value its column."""
    query, key, value = calls.draw(np.random.default_rng(9), "normal", (1, 1, 1, 4, 8, 4, 4), "float32")
    clean = ak.attention(query, key, value, mask=CAUSAL, backend=f"numpy:{path}")
    if kept == "key":
        value[0, 0, 5:, 2] = NAN
    else:
        key[0, 0, 5:, 2] = NAN
    lost = np.isnan(ak.attention(query, key, value, mask=CAUSAL, backend=f"numpy:{path}"))
    expected = np.zeros((4, 4), bool)
    expected[1:, 2 if kept == "key" else slice(None)] = True
    np.testing.assert_array_equal(lost[0, 0], expected)
    found = ak.attention(query, key, value, mask=CAUSAL, backend=f"numpy:{path}")
    np.testing.assert_allclose(found[~lost], clean[~lost], rtol=1e-5, atol=1e-6)
