"""The dense path on NumPy arrays, against the oracle: it takes any library of the array API.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.call import describe_call, gather_options
from attnkit.numerics import numerics_for
from attnkit_cupy import dense
from attnkit_cupy.backend import CAPABILITIES

SIZES = 2, 4, 2, 5, 9, 8, 6
DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
RNG = np.random.default_rng(7)
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"mask": ak.Mask.causal()},
    "window": {"mask": ak.Mask.window(3, 1) & ak.Mask.chunked(4)},
    "prefix": {"mask": ak.Mask.prefix(4)},
    "documents": {"mask": ak.Mask.documents(RNG.integers(0, 2, (2, 5)), RNG.integers(0, 2, 9))},
    "dense": {"mask": ak.Mask.dense(RNG.random((2, 1, 5, 9)) < 0.5) & ak.Mask.dense(RNG.random((1, 4, 1, 9)) < 0.9)},
    "bias": {"bias": np.where(RNG.random((1, 4, 5, 9)) < 0.2, -np.inf, 5.0).astype(np.float16)},
    "alibi": {"alibi": RNG.random((2, 4)).astype(np.float32), "mask": ak.Mask.causal()},
    "softcap": {"softcap": 2.5, "scale": -0.7},
    "sinks": {"sinks": np.array([1.0, -np.inf, 0.0, 30.0], np.float32), "query_lengths": np.array([5, 2])},
    "lengths": {"kv_lengths": np.array([9, 0]), "query_lengths": np.array([3, 5]), "mask": ak.Mask.causal()},
    "offsets": {"query_offset": np.array([-2, 4]), "key_offset": np.array([0, 3]), "mask": ak.Mask.causal()},
}


def draw(dtype: str, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    batch, heads, kv_heads, rows, keys, head_dim, value_dim = sizes
    shapes = (batch, heads, rows, head_dim), (batch, kv_heads, keys, head_dim), (batch, kv_heads, keys, value_dim)
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]


def attend(arrays: list[Any], **options: Any) -> ak.AttentionOutput:
    request, operands = describe_call(*arrays, gather_options(**options), True)
    return dense.attend(request, *arrays, operands)


def check(arrays: list[Any], **options: Any) -> None:
    found, truth = attend(arrays, **options), reference.attention(*arrays, **options)
    dtype = arrays[0].dtype.name
    bound = truth.tolerance(numerics_for(CAPABILITIES.numerics[dtype], dtype))
    assert found.output.dtype == arrays[0].dtype
    assert found.lse is not None
    assert found.lse.dtype == ("float64" if dtype == "float64" else "float32")
    assert np.all(np.abs(found.output.astype(np.float64) - truth.output) <= bound.output)
    empty = truth.lse == -np.inf
    np.testing.assert_array_equal(found.lse[empty], -np.inf)
    assert np.all(np.abs(found.lse[~empty].astype(np.float64) - truth.lse[~empty]) <= bound.lse[~empty])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_option_is_applied(dtype: str, options: str) -> None:
    check(draw(dtype), **OPTIONS[options])


@pytest.mark.parametrize("scale", [0.0, 2.0**-140, 2.0**120])
def test_odd_scales(scale: float) -> None:
    query, key, value = draw("float32")
    factor = np.float32(2.0**-110 if scale > 1 else 1)
    check([query * factor, key, value], scale=scale)


@pytest.mark.parametrize("sizes", [(0, 4, 2, 5, 9, 8, 6), (2, 4, 2, 0, 9, 8, 6), (2, 4, 2, 5, 0, 8, 6)])
def test_empty_axes(sizes: tuple[int, ...]) -> None:
    check(draw("float32", sizes), sinks=np.ones(4, np.float32))
    check(draw("float32", sizes))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_hidden_numbers_leave_no_trace(number: float) -> None:
    query, key, value = draw("float32")
    clean = attend([query, key, value], mask=ak.Mask.causal(), kv_lengths=np.array([8, 6]))
    key[1, :, 6:], value[:, :, 8:], value[1, 0, 5], key[1, 1, 5] = number, number, number, number
    found = attend([query, key, value], mask=ak.Mask.causal(), kv_lengths=np.array([8, 6]))
    assert found.lse is not None
    assert clean.lse is not None
    assert found.output[0].tobytes() == clean.output[0].tobytes()
    assert found.output[1, :, :-1].tobytes() == clean.output[1, :, :-1].tobytes()
    assert found.lse[0].tobytes() == clean.lse[0].tobytes()
    assert not np.isfinite(found.output[1, :, -1]).all(axis=-1).any(), "the last row sees them"


@pytest.mark.parametrize("numbers", [(np.nan,), (np.inf,), (-np.inf,), (np.inf, -np.inf), (np.inf, np.inf)])
def test_visible_values_propagate(numbers: tuple[float, ...]) -> None:
    query, key, value = draw("float64")
    for place, number in enumerate(numbers):
        value[0, 0, 2 + place, 1] = number
    found = attend([query, key, value], mask=ak.Mask.causal())
    with np.errstate(invalid="ignore"):
        truth = reference.attention(query, key, value, mask=ak.Mask.causal())
    np.testing.assert_allclose(found.output, truth.output, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_visible_keys_propagate(number: float) -> None:
    query, key, value = (np.abs(array) for array in draw("float64"))
    key[0, 1, 2, 0] = number
    found = attend([query, key, value])
    with np.errstate(invalid="ignore"):
        truth = reference.attention(query, key, value)
    np.testing.assert_allclose(found.output, truth.output, rtol=1e-12, atol=1e-13)
    assert np.isfinite(found.output[1]).all()


def test_operands_on_the_host_are_sent_to_the_device() -> None:
    class Sent(np.ndarray):
        pass

    class Library:
        @staticmethod
        def asarray(array: Any) -> Any:
            return np.asarray(array).view(Sent)

    operands = ak.Operands(
        *(3, 4), bias=np.ones(1), kv_lengths=np.ones(1), documents=((np.ones(3), np.ones(4)),), dense=(np.ones(1),)
    )
    placed = dense.placed(operands, Library)
    assert (placed.query_length, placed.key_length, placed.alibi) == (3, 4, None)
    sent = [placed.bias, placed.kv_lengths, *placed.documents[0], *placed.dense]
    assert all(isinstance(array, Sent) for array in sent)
