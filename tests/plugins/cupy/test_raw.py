"""The raw path as a whole: views of any kind, offsets beyond 31 bits, refusals, and which kernel takes a call."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import attnkit as ak
from attnkit.call import describe_call, gather_options
from attnkit_cupy import raw
from attnkit_cupy.operands import folded
from attnkit_cupy.runtime import Device
from attnkit_cupy.stored import StoredKind

SIZES = (2, 4, 2, 9, 21, 24, 20)
_MAP_NORESERVE = 0x4000  # of Linux; Python names it from 3.12 on
CAUSAL = ak.Mask.causal()


def swapped(array: Any) -> Any:
    """Lay out heads inside of tokens, as models have them."""
    return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)


def reversed_rows(array: Any) -> Any:
    return np.ascontiguousarray(array[:, ::-1, ::-1])[:, ::-1, ::-1]


def reversed_features(array: Any) -> Any:
    return np.ascontiguousarray(array[..., ::-1])[..., ::-1]


def every_other(array: Any) -> Any:
    return np.repeat(np.repeat(array, 2, axis=2), 3, axis=1)[:, ::3, ::2]


def cut_out(array: Any) -> Any:
    return np.pad(array, [(0, 0), (0, 0), (1, 1), (3, 2)])[:, :, 1:-1, 3:-2]


def misaligned(array: Any) -> Any:
    """Lay out elements at addresses that are no multiple of their size."""
    data = np.zeros(array.nbytes + 1, np.uint8)
    view = data[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def in_records(array: Any) -> Any:
    """Lay out rows at a distance that is no multiple of the size of an element."""
    records = np.zeros(array.shape[:3], np.dtype([("x", array.dtype, (array.shape[3],)), ("odd", "u1")]))
    records["x"] = array
    return records["x"]


VIEWS = [swapped, reversed_rows, reversed_features, every_other, cut_out, misaligned, in_records, np.asfortranarray]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_views_are_read_as_they_are(calls: Any, runtime: Any, view: Any, dtype: str) -> None:
    case = calls.draw(0, SIZES, dtype, mask=CAUSAL)
    plain = calls.attend(runtime, case, "simt")
    calls.assert_same_bits(plain, calls.attend(runtime, case.holding(*map(view, case.arrays)), "simt"))


def test_broadcast_arrays(calls: Any, runtime: Any) -> None:
    case = calls.draw(1, SIZES, mask=CAUSAL)
    wide = [np.broadcast_to(array[:1, :1], array.shape) for array in case.arrays]
    wide[2] = np.broadcast_to(wide[2][..., :1], wide[2].shape)
    calls.check(case.holding(*wide), calls.attend(runtime, case.holding(*wide), "simt"))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_views_of_options(calls: Any, runtime: Any, view: Any) -> None:
    rng = np.random.default_rng(2)
    bias, keep = rng.standard_normal((2, 4, 9, 21)).astype(np.float32), rng.random((2, 4, 9, 21)) < 0.7
    case = calls.draw(2, SIZES, bias=view(bias), mask=ak.Mask.dense(view(keep)))
    calls.check(case, calls.attend(runtime, case, "simt"))


def test_numbers_of_any_kind(calls: Any, runtime: Any) -> None:
    """Slopes, sinks, lengths and ids as strided views, of types that kernels do not read."""
    ids = np.arange(42, dtype=np.uint8).reshape(21, 2).repeat(2, axis=0)[:42:2, 0] // 16
    case = calls.draw(
        3,
        SIZES,
        mask=ak.Mask.documents(np.zeros((2, 9), np.int16), ids),
        alibi=np.arange(16.0).reshape(2, 8)[:, ::2] / 8,
        sinks=np.arange(8, dtype=np.float16)[::-2],
        kv_lengths=np.array([21, 0, 7, 0], np.int32)[::2],
    )
    calls.check(case, calls.attend(runtime, case, "simt"))


def far_apart(array: Any, axis: int, stride: int) -> Any:
    """Lay an array out with so many elements between indices of an axis; memory is committed as it is used."""
    strides = list(np.ascontiguousarray(array).strides)
    strides[axis] = stride * array.itemsize
    size = sum((length - 1) * step for length, step in zip(array.shape, strides, strict=True)) + array.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    data = np.frombuffer(mmap.mmap(-1, size, flags=flags), array.dtype)
    view = as_strided(data, array.shape, strides)
    view[...] = array
    return view


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
def test_offsets_beyond_31_bits(calls: Any, runtime: Any, which: int, axis: int) -> None:
    case = calls.draw(4, (2, 4, 2, 3, 4, 16, 16), "float16", mask=CAUSAL)
    plain, arrays = calls.attend(runtime, case, "simt"), list(case.arrays)
    arrays[which] = far_apart(arrays[which], axis, 2**31 + 16)
    calls.assert_same_bits(plain, calls.attend(runtime, case.holding(*arrays), "simt"))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_offsets_of_options_beyond_31_bits(calls: Any, runtime: Any, axis: int) -> None:
    rng, shape = np.random.default_rng(5), (2, 4, 3, 4)
    bias, keep = rng.standard_normal(shape).astype(np.float16), rng.random(shape) < 0.7
    near = calls.draw(5, (2, 4, 2, 3, 4, 16, 16), bias=bias)
    far = calls.Case(near.arrays, {"bias": far_apart(bias, axis, 2**31 + 16)})
    calls.assert_same_bits(calls.attend(runtime, near, "simt"), calls.attend(runtime, far, "simt"))
    query, key, value = near.arrays
    request, operands = describe_call(query, key, value, gather_options(mask=ak.Mask.dense(keep)), False)
    stored = raw.Stored.of_arrays(key, value, runtime)
    plain = raw.attend(runtime, request, query, stored, operands, "simt")
    operands = operands._replace(dense=(far_apart(keep, axis, 2**31 + 16),))
    assert plain.output.tobytes() == raw.attend(runtime, request, query, stored, operands, "simt").output.tobytes()


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-42, -1e-40, 3e38])
def test_scales_that_no_float_holds(calls: Any, runtime: Any, scale: float) -> None:
    case = calls.draw(6, SIZES, scale=scale)
    query, key, value = case.arrays
    size = np.float32(1e18 if 0 < abs(scale) < 1e-30 else 1e-20 if scale > 1 else 1)
    case = case.holding(query * size, key * size, value)
    calls.check(case, calls.attend(runtime, case, "simt"))


@pytest.mark.parametrize("softcap", [1e-300, 1e-42, 1e-3, 1e10, 3e38, 1e60, 1e300])
def test_soft_caps_of_any_size(calls: Any, runtime: Any, softcap: float) -> None:
    case = calls.draw(7, SIZES, softcap=softcap)
    calls.check(case, calls.attend(runtime, case, "simt"))


def test_arguments_are_left_alone_and_results_are_new(calls: Any, runtime: Any) -> None:
    case = calls.draw(8, SIZES, mask=CAUSAL, sinks=np.ones(4, np.float32))
    before = [array.copy() for array in case.arrays]
    for array in case.arrays:
        array.flags.writeable = False
    first, second = calls.attend(runtime, case, "simt"), calls.attend(runtime, case, "simt")
    for array, copy in zip(case.arrays, before, strict=True):
        assert array.tobytes() == copy.tobytes()
    assert not any(np.shares_memory(first.output, array) for array in (*case.arrays, second.output))


def test_lse_is_given_where_it_is_asked_for(calls: Any, runtime: Any) -> None:
    query, key, value = calls.draw(9, SIZES).arrays
    request, operands = describe_call(query, key, value, gather_options(), False)
    assert raw.attend(runtime, request, query, raw.Stored.of_arrays(key, value, runtime), operands).lse is None


REQUEST = ak.AttentionRequest(("numpy.ndarray",), "cpu", "float32", "float32", 1, 8, 8, 4, 64, 64, 64)
REFUSED: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "float64"},
    "kv_dtype": {"kv_dtype": "float64"},
    "head_dim": {"head_dim": 257},
    "value_dim": {"value_dim": 300},
    "batch": {"batch": 65536},
    "num_kv_heads": {"num_heads": 65536, "num_kv_heads": 65536},
    "query_length": {"query_length": 2**31 - 5},
    "key_length": {"key_length": 2**31},
    "mask.chunks": {"mask": ak.MaskStructure(chunks=(2, 3, 4, 5, 6))},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_no_kernel_takes_is_refused_by_name(field: str) -> None:
    assert raw.refusals(REQUEST) == []
    (reason,) = raw.refusals(REQUEST._replace(**REFUSED[field]))
    assert (reason.code, reason.field) == ("path", field)
    assert reason.actual in str(reason)
    assert reason.required in str(reason)


def test_every_reason_is_given_at_once() -> None:
    worst = REQUEST._replace(dtype="float64", head_dim=300, batch=100_000)
    assert [reason.field for reason in raw.refusals(worst)] == ["dtype", "head_dim", "batch"]


@pytest.mark.parametrize("kernel", raw.KERNELS)
def test_the_choice_keeps_to_what_kernels_refuse(kernel: str) -> None:
    turing = Device(75, 40, 64 * 1024)
    for dtype in ("float32", "float16", "bfloat16"):
        for rows in (1, 5000):
            for kind in (StoredKind(dtype, dtype, dtype, False, True), StoredKind("int4", "int4", dtype, True, False)):
                request = REQUEST._replace(dtype=dtype, kv_dtype=dtype, query_length=rows)
                chosen = raw.kernel_for(request, kind, turing)
                if chosen == kernel:
                    assert raw.KERNELS[kernel].refusals(request, kind, turing) == []
    assert raw.KERNELS["simt"].refusals(REQUEST, kind, turing) == []


def test_masks_beyond_two_documents_are_folded() -> None:
    rng = np.random.default_rng(10)
    documents = tuple((rng.integers(0, 2, 5), rng.integers(0, 2, (2, 7))) for _ in range(4))
    keep = rng.random((1, 3, 1, 7)) < 0.5, rng.random((2, 1, 5, 1)) < 0.5
    pairs, dense = folded(ak.Operands(5, 7, documents=documents, dense=keep), np)
    assert dense is not None
    same = [ids_q[None, :, None] == ids_k[:, None, :] for ids_q, ids_k in documents]
    np.testing.assert_array_equal(dense, keep[0] & keep[1] & same[2][:, None] & same[3][:, None])
    assert len(pairs) == 2
    assert folded(ak.Operands(5, 7), np) == ([], None)
