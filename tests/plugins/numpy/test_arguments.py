"""Any strides are read right, nothing is modified, no result aliases an argument (contract A13)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()
SIZES = (2, 4, 2, 4, 20, 8, 8)


def spread(array: Any) -> Any:
    """Put an array into every other place of a larger one, full of NaN between."""
    larger = np.full([2 * size for size in array.shape], np.nan, array.dtype)
    view = larger[tuple(slice(1, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def misaligned(array: Any) -> Any:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "fortran": np.asfortranarray,
    "tokens before heads": lambda array: np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2),
    "features before tokens": lambda array: np.ascontiguousarray(array.swapaxes(2, 3)).swapaxes(2, 3),
    "negative strides": lambda array: np.ascontiguousarray(array[:, ::-1, ::-1, ::-1])[:, ::-1, ::-1, ::-1],
    "gaps": spread,
    "misaligned": misaligned,
    "read-only": read_only,
    "part of a longer cache": lambda array: np.concatenate([array, np.full_like(array, np.nan)], 2)[
        :, :, : array.shape[2]
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layouts(calls: Any, path: str, layout: Callable[[Any], Any], dtype: str) -> None:
    arrays = calls.draw(np.random.default_rng(0), "normal", SIZES, dtype)
    bias = np.random.default_rng(1).standard_normal((2, 4, 4, 20)).astype(np.float32)
    keep = np.random.default_rng(2).random((2, 4, 4, 20)) < 0.8
    case = calls.Case([layout(array) for array in arrays], {"mask": ak.Mask.dense(keep), "bias": layout(bias)})
    calls.check(calls.Case(arrays, {"mask": ak.Mask.dense(keep), "bias": bias}), calls.run(case, path))


@pytest.mark.parametrize("layout", ["gaps", "negative strides", "part of a longer cache", "misaligned"])
def test_layouts_of_keys_change_no_bit(calls: Any, path: str, layout: str) -> None:
    query, key, value = calls.draw(np.random.default_rng(3), "normal", SIZES, "float32")
    moved = calls.Case([query, LAYOUTS[layout](key), LAYOUTS[layout](value)], {"mask": CAUSAL})
    calls.assert_same_bits(calls.run(calls.Case([query, key, value], {"mask": CAUSAL}), path), calls.run(moved, path))


def test_broadcast_arguments(calls: Any, path: str) -> None:
    query, key, value = calls.draw(np.random.default_rng(4), "normal", (1, 1, 1, 4, 20, 8, 8), "float32")
    shapes = (2, 4, 4, 8), (2, 2, 20, 8), (2, 2, 20, 8)
    wide = [np.broadcast_to(array, shape) for array, shape in zip((query, key, value), shapes, strict=True)]
    wide[2] = np.broadcast_to(value[:, :, :1], shapes[2])
    case = calls.Case(wide, {"mask": CAUSAL})
    calls.check(case, calls.run(case, path))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_arguments_stay_as_they_are_and_results_are_new(calls: Any, path: str, dtype: str) -> None:
    query, key, value = calls.draw(np.random.default_rng(5), "normal", SIZES, dtype)
    options = {
        "mask": ak.Mask.dense(np.random.default_rng(6).random((4, 20)) < 0.7) & CAUSAL,
        "bias": np.random.default_rng(7).standard_normal((4, 20)).astype(np.float32),
        "alibi": np.full(4, 0.5, np.float32),
        "sinks": np.zeros(4, np.float32),
        "kv_lengths": np.array([20, 3]),
        "query_lengths": np.array([4, 1]),
        "query_offset": np.array([16, 2]),
        "softcap": 9.0,
    }
    arguments = [query, key, value, *(option for option in options.values() if isinstance(option, np.ndarray))]
    before = [array.copy() for array in arguments]
    found = ak.attention_with_lse(query, key, value, **options, backend=f"numpy:{path}")
    for array, copy in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert not any(np.shares_memory(array, result) for result in found)
    again = ak.attention_with_lse(query, key, value, **options, backend=f"numpy:{path}")
    assert not any(np.shares_memory(a, b) for a, b in zip(found, again, strict=True))
    assert all(result.flags.writeable for result in found)


def test_a_memory_map_gives_a_plain_array(calls: Any, path: str, tmp_path: Path) -> None:
    arrays = calls.draw(np.random.default_rng(8), "normal", SIZES, "float32")
    maps = []
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
        maps.append(np.load(tmp_path / f"{number}.npy", mmap_mode="r"))
    found = ak.attention(*maps, backend=f"numpy:{path}")
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, ak.attention(*arrays, backend=f"numpy:{path}"))


def test_from_numpy_and_to_numpy_copy() -> None:
    backend = ak.get_backend("numpy")
    array = np.arange(6.0)
    for convert in (backend.from_numpy, backend.to_numpy):
        copy = convert(array)
        assert not np.shares_memory(array, copy)
        np.testing.assert_array_equal(array, copy)
