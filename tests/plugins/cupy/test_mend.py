"""Dead and hidden keys leave no trace, bit for bit (contract A8); visible NaN and infinity leave theirs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference

CAUSAL = ak.Mask.causal()
INF, NAN = np.inf, np.nan
SIZES = (2, 4, 2, 4, 80, 16, 12)
BIAS = np.zeros((1, 1, 1, 80), np.float32)
BIAS[..., 3:9] = -INF
KEEP = np.ones((1, 1, 1, 80), bool)
KEEP[..., 5:70:3] = False
HIDING: dict[str, dict[str, Any]] = {
    "lengths": {"kv_lengths": np.array([80, 7])},
    "lengths and causal": {"kv_lengths": np.array([3, 71]), "mask": CAUSAL},
    "no key at all": {"kv_lengths": np.array([0, 2])},
    "causal": {"mask": CAUSAL, "query_offset": 10},
    "window": {"mask": ak.Mask.window(6)},
    "chunks": {"mask": ak.Mask.chunked(7)},
    "dense": {"mask": ak.Mask.dense(KEEP)},
    "documents": {"mask": ak.Mask.documents(np.zeros(4, int), np.arange(80) // 9)},
    "bias": {"bias": BIAS},
    "bias and soft-cap": {"bias": BIAS, "softcap": 5.0},
    "sinks and window": {"mask": ak.Mask.window(6), "sinks": np.ones(4, np.float32)},
}

# The kernels, and an element type that each of them is for.
FLASH = {"float32": "strict-fp32", "float16": "fa-16+truncating", "bfloat16": "fa-16+truncating"}
WAYS = [("simt", "float32"), ("mma", "float16"), ("decode", "float32"), ("decode", "bfloat16")]

pytestmark = pytest.mark.parametrize(("kernel", "dtype"), WAYS)


def dead_to(case: Any, row: int | None) -> Any:
    """Give the keys that a row, or none of the rows, of any query head of a group sees, ``[B, K, S]``."""
    shown = reference.attention(*case.arrays, **case.options).problem.shown
    shown = shown.any(axis=2) if row is None else shown[:, :, row]
    (batch, heads, keys), kv_heads = shown.shape, case.arrays[1].shape[1]
    return ~shown.reshape(batch, kv_heads, heads // kv_heads, keys).any(axis=2)


def assert_close(found: ak.AttentionOutput, output: Any, lse: Any) -> None:
    """Compare numbers of about 1, NaN and infinity with their places too; rounded to 16 bits they are a little off."""
    few = max(2 * float(ml_dtypes.finfo(found.output.dtype).eps), 1e-5)
    np.testing.assert_allclose(found.output.astype(float), output.astype(float), rtol=few, atol=few)
    np.testing.assert_allclose(found.lse, lse, rtol=1e-5, atol=1e-5)


def poisoned(case: Any, where: Any, key_poison: Any, value_poison: Any) -> Any:
    query, key, value = (array.copy() for array in case.arrays)
    key[where], value[where] = key_poison, value_poison
    return case.holding(query, key, value)


@pytest.mark.parametrize("options", HIDING.values(), ids=HIDING.keys())
@pytest.mark.parametrize("poison", [NAN, INF, -INF, 6e4])
def test_keys_that_nobody_sees_change_no_bit(
    calls: Any, runtime: Any, kernel: str, dtype: str, options: dict[str, Any], poison: float
) -> None:
    case = calls.draw(0, SIZES, dtype, **options)
    where = dead_to(case, None)
    assert where.any()
    clean = calls.attend(runtime, case, kernel)
    calls.assert_same_bits(clean, calls.attend(runtime, poisoned(case, where, poison, poison), kernel))


@pytest.mark.parametrize("rows", [4, 40])
@pytest.mark.parametrize(
    "mask", [CAUSAL, CAUSAL & ak.Mask.window(9), ak.Mask.prefix(3)], ids=["causal", "window", "prefix"]
)
def test_rows_do_not_feel_what_other_rows_see(
    calls: Any, runtime: Any, kernel: str, dtype: str, rows: int, mask: ak.Mask
) -> None:
    case = calls.draw(1, (1, 2, 1, rows, 80, 16, 12), dtype, mask=mask)
    clean = calls.attend(runtime, case, kernel)
    largest = float(ml_dtypes.finfo(dtype).max)
    for row in (0, rows // 2, rows - 1):
        where = dead_to(case, row)
        for poisons in ((NAN, INF), (INF, NAN), (-INF, -INF), (largest, -largest)):
            found = calls.attend(runtime, poisoned(case, where, *poisons), kernel)
            for one, other in zip(found, clean, strict=True):
                assert one[:, :, row].tobytes() == other[:, :, row].tobytes()


def test_rows_that_see_it_show_what_the_reference_shows(calls: Any, runtime: Any, kernel: str, dtype: str) -> None:
    case = calls.draw(2, (2, 4, 2, 40, 90, 16, 12), dtype, mask=CAUSAL)
    _, key, value = case.arrays
    value[0, 0, 60, 3], value[0, 1, 70, :2], value[1, 0, 5, 1], key[1, 1, 80, 4] = NAN, INF, -INF, NAN
    found = calls.attend(runtime, case, kernel)
    with np.errstate(all="ignore"):
        truth = reference.attention(*case.arrays, mask=CAUSAL)
    np.testing.assert_array_equal(np.isnan(found.output), np.isnan(truth.output))
    np.testing.assert_array_equal(np.isnan(found.lse), np.isnan(truth.lse))
    assert_close(found, truth.output, truth.lse)


@pytest.mark.parametrize("options", [{}, {"sinks": np.ones(4, np.float32)}, {"softcap": 2.0, "mask": CAUSAL}], ids=str)
def test_a_nan_in_a_query_stays_in_its_row(
    calls: Any, runtime: Any, kernel: str, dtype: str, options: dict[str, Any]
) -> None:
    case = calls.draw(3, SIZES, dtype, **options)
    clean = calls.attend(runtime, case, kernel)
    case.arrays[0][1, 2, 1, 3] = NAN
    found = calls.attend(runtime, case, kernel)
    lost = np.zeros((2, 4, 4), bool)
    lost[1, 2, 1] = True
    assert np.isnan(found.output[lost]).all()
    assert np.isnan(found.lse[lost]).all()
    np.testing.assert_array_equal(found.output[~lost], clean.output[~lost])
    np.testing.assert_array_equal(found.lse[~lost], clean.lse[~lost])


def test_padding_is_not_read(calls: Any, runtime: Any, kernel: str, dtype: str) -> None:
    lengths = {"query_lengths": np.array([4, 2]), "kv_lengths": np.array([80, 33])}
    case = calls.draw(4, SIZES, dtype, mask=CAUSAL, sinks=np.ones(4, np.float32), **lengths)
    clean = calls.attend(runtime, case, kernel)
    query, key, value = (array.copy() for array in case.arrays)
    query[1, :, 2:], key[1, :, 33:], value[1, :, 33:] = NAN, INF, NAN
    calls.assert_same_bits(clean, calls.attend(runtime, case.holding(query, key, value), kernel))


def test_a_key_of_minus_infinity_weighs_nothing(calls: Any, runtime: Any, kernel: str, dtype: str) -> None:
    case = calls.draw(5, (1, 2, 1, 3, 30, 8, 8), dtype)
    query, key, value = case.arrays
    np.abs(query, out=query)
    key[0, 0, 2] = -INF
    keep = np.arange(30) != 2
    found = calls.attend(runtime, case, kernel)
    expected = calls.attend(runtime, case.holding(query, key[:, :, keep], value[:, :, keep]), kernel)
    assert_close(found, expected.output, expected.lse)


def test_sums_of_large_values_do_not_overflow(calls: Any, runtime: Any, kernel: str, dtype: str) -> None:
    """Weights are divided by their sum at the end; rows that overflow before that are computed again."""
    case = calls.draw(6, (1, 2, 1, 20, 80, 16, 8), dtype, mask=CAUSAL)
    query, key, value = case.arrays
    most = query.dtype.type(float(ml_dtypes.finfo(dtype).max) * 0.9)
    largest = case.holding(query / 8, key, np.copysign(most, value))
    found = calls.attend(runtime, largest, kernel)
    assert np.isfinite(found.output).all()
    calls.check(largest, found, FLASH)


def test_lengths_hide_what_documents_would_show(calls: Any, runtime: Any, kernel: str, dtype: str) -> None:
    """Rows that are mended take every option: their keys are NaN where hidden, and one visible value is infinite."""
    options: dict[str, Any] = {
        "mask": ak.Mask.documents(np.zeros(4, int), np.arange(80) % 2) & ak.Mask.dense(KEEP),
        "bias": BIAS,
        "alibi": np.full(4, 0.1, np.float32),
        "sinks": np.ones(4, np.float32),
        "softcap": 3.0,
        "kv_lengths": np.array([80, 40]),
    }
    case = calls.draw(7, SIZES, dtype, **options)
    clean = reference.attention(*case.arrays, **options)
    odd = poisoned(case, dead_to(case, None), NAN, NAN)
    odd.arrays[2][0, 0, 2, 1] = INF
    found = calls.attend(runtime, odd, kernel)
    assert np.isinf(found.output[0, :2, :, 1]).all()
    expected = clean.output.copy()
    expected[0, :2, :, 1] = INF
    assert_close(found, expected, clean.lse)
