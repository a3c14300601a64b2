"""flash_decode against the oracle: element types and codecs, head sizes, options, splits, pages, schedules, tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.call import describe_call, gather_options
from attnkit_cupy import decode, raw
from attnkit_cupy.runtime import Device
from attnkit_cupy.stored import Stored, StoredKind

NUMERICS = {"float32": "strict-fp32", "float16": "fa-16+truncating", "bfloat16": "fa-16+truncating"}
DTYPES = ["float32", "float16", "bfloat16"]
CAUSAL = ak.Mask.causal()
B, H, K, T, S, D = 2, 6, 2, 2, 330, 40
SIZES = (B, H, K, T, S, D, D)
RNG = np.random.default_rng(0)
BIAS = RNG.standard_normal((B, 1, T, S)).astype(np.float32)
BIAS[..., ::5] = -np.inf
DOCUMENTS = ak.Mask.documents(np.sort(RNG.integers(0, 3, (B, T))), np.sort(RNG.integers(0, 3, S)))
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"mask": CAUSAL},
    "window": {"mask": CAUSAL & ak.Mask.window(100)},
    "prefix": {"mask": ak.Mask.prefix(50), "query_offset": 20},
    "chunked": {"mask": ak.Mask.chunked(160)},
    "documents": {"mask": DOCUMENTS},
    "dense": {"mask": ak.Mask.dense(RNG.random((1, H, T, S)) < 0.7)},
    "bias": {"bias": BIAS},
    "alibi": {"alibi": RNG.random((B, H)), "mask": CAUSAL},
    "softcap": {"softcap": 2.0},
    "negative scale": {"scale": -0.3},
    "sinks": {"sinks": np.array([1.5, -np.inf, 0.0, 30.0, -3.0, 2.0], np.float32), "mask": CAUSAL},
    "lengths": {"query_lengths": np.array([T, 1]), "kv_lengths": np.array([5, 300]), "mask": CAUSAL},
    "no key": {"kv_lengths": np.array([0, 1]), "sinks": np.array([1.0, -np.inf] * 3, np.float32)},
    "offsets": {"query_offset": np.array([30, -1]), "key_offset": np.array([0, 40]), "mask": CAUSAL},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("dtype", DTYPES)
def test_options(calls: Any, runtime: Any, options: dict[str, Any], dtype: str) -> None:
    case = calls.draw(1, SIZES, dtype, **options)
    calls.check(case, calls.attend(runtime, case, "decode"), NUMERICS)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_options_together(calls: Any, runtime: Any, seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    options = {}
    for name in rng.choice(list(OPTIONS), 5, replace=False):
        options |= OPTIONS[name]
    case = calls.draw(seed, SIZES, dtype, **options)
    calls.check(case, calls.attend(runtime, case, "decode"), NUMERICS)


SHAPES = [
    (1, 1, 1, 1, 1, 16, 16),
    (1, 8, 8, 1, 140, 64, 64),  # one row
    (3, 8, 2, 1, 70, 80, 80),
    (1, 16, 1, 1, 200, 128, 64),  # a tile of 16 rows, or two of 8
    (1, 5, 1, 3, 90, 20, 33),
    (1, 4, 2, 1, 60, 192, 128),
    (1, 2, 1, 2, 80, 256, 256),
    (1, 1, 1, 3, 2, 64, 64),
]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(calls: Any, runtime: Any, sizes: tuple[int, ...], dtype: str) -> None:
    for kind in ("normal", "peaky"):
        case = calls.draw(2, sizes, dtype, kind, mask=CAUSAL)
        calls.check(case, calls.attend(runtime, case, "decode"), NUMERICS)


@pytest.mark.parametrize("sizes", [(2, 2, 1, 3, 0, 8, 8), (2, 2, 1, 3, 5, 8, 0)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_axes(calls: Any, runtime: Any, sizes: tuple[int, ...], dtype: str) -> None:
    case = calls.draw(3, sizes, dtype, sinks=np.array([2.0, -np.inf], np.float32))
    calls.check(case, calls.attend(runtime, case, "decode"), NUMERICS)


def test_more_rows_than_a_tile(calls: Any, runtime: Any) -> None:
    case = calls.draw(4, (1, 8, 1, 8, 140, 64, 64), "float16", mask=CAUSAL)
    calls.check(case, calls.attend(runtime, case, "decode"), NUMERICS)


@pytest.mark.parametrize("count", [1, 3, 10, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_splits(calls: Any, runtime_of: Any, count: int, dtype: str) -> None:
    device, sizes = Device(90, count, 227 * 1024), (2, 2, 1, 1, 1300, 24, 24)
    options = {"sinks": np.array([0.5, -np.inf], np.float32), "kv_lengths": np.array([1, 1290])}
    case = calls.draw(5, sizes, dtype, **options)
    calls.check(case, calls.attend(runtime_of(device=device), case, "decode"), NUMERICS)


def test_splits_follow_shapes_and_the_device() -> None:
    tile = decode.MMA_TILES[0]
    small, large = Device(90, 10, 227 * 1024), Device(90, 132, 227 * 1024)
    assert decode.splits_for(large, tile, 1, 127) == 1
    assert decode.splits_for(large, tile, 1, 1280) == 10  # no shorter than two tiles for each warp
    assert decode.splits_for(small, tile, 8, 10**6) == 3
    assert decode.splits_for(small, tile, 20, 10**6) == 1


CODECS = ["int8", "int8/8", "int8/20", "int4", "int4/10", "fp8", "fp8/5"]


def stored(runtime: Any, case: Any, codec: str, dtype: str, page_size: int) -> tuple[Stored, Any]:
    """Store keys and values in pages in any order; gives them, and the case on what they decode to."""
    backend, form, keys = ak.get_backend("numpy"), ak.Codec.model_validate(codec), case.arrays[1].shape[2]
    count = -(-keys // page_size)
    orders = np.random.default_rng(0).permutation(count * len(case.arrays[1])).reshape(-1, count).tolist()
    spans = tuple(
        tuple((n * page_size, n * page_size + min(page_size, keys - page_size * i)) for i, n in enumerate(order))
        for order in orders
    )
    table, made, decoded = ak.SlotTable(spans), [], []
    for array in case.arrays[1:]:
        heads, size = array.shape[1], array.shape[3]
        slots = count * page_size * len(array)
        planes = [backend.allocate((heads, slots, features), name) for features, name in form.planes(size, dtype)]
        for plane in planes:
            plane.view(np.uint8)[:] = 0xFF
        half = ak.Planes(tuple(planes), form, size, dtype)
        half.write(backend, table.slots, array)
        made.append(half)
        decoded.append(half.read(backend, table.slots))
    pages = ak.Pages(made[0], made[1], page_size)
    return Stored.of_pages(pages, table, runtime), case.holding(case.arrays[0], *decoded)


def attend_stored(runtime: Any, case: Any, where: Stored) -> ak.AttentionOutput:
    request, operands = describe_call(*case.arrays, gather_options(**case.options), True, cached=True)
    return raw.attend(runtime, request, case.arrays[0], where, operands, "decode")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_codecs_decode_to_the_same_bits(calls: Any, runtime: Any, codec: str, page_size: int) -> None:
    case = calls.draw(6, (2, 6, 2, 1, 75, 40, 40), mask=CAUSAL)
    where, plain = stored(runtime, case, codec, "float32", page_size)
    calls.assert_same_bits(attend_stored(runtime, plain, where), calls.attend(runtime, plain, "decode"))


@pytest.mark.parametrize("codec", ["native", "int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes", [(2, 4, 2, 1, 75, 64, 32), (1, 4, 1, 2, 50, 17, 128), (1, 2, 2, 1, 40, 256, 9)], ids=str
)
def test_storage(calls: Any, runtime: Any, codec: str, dtype: str, sizes: tuple[int, ...]) -> None:
    case = calls.draw(7, sizes, dtype, mask=CAUSAL)
    where, plain = stored(runtime, case, codec, dtype, 16)
    calls.check(plain, attend_stored(runtime, plain, where), NUMERICS)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("float32", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16")]
)
def test_a_cache_of_another_type(calls: Any, runtime: Any, dtype: str, kv_dtype: str) -> None:
    case = calls.draw(8, (1, 4, 2, 1, 75, 64, 64), dtype)
    where, plain = stored(runtime, case, "native", kv_dtype, 16)
    calls.check(plain, attend_stored(runtime, plain, where), NUMERICS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_change_no_bit(calls: Any, runtime: Any, dtype: str) -> None:
    case = calls.draw(9, (2, 4, 2, 1, 80, 24, 24), dtype)
    wide = [np.concatenate([array, array], axis=3)[..., 1:] for array in case.arrays]  # at odd addresses
    other = case.holding(*(array[:, ::-1, ::-1, 23:47][:, ::-1, ::-1] for array in wide))
    calls.assert_same_bits(calls.attend(runtime, case, "decode"), calls.attend(runtime, other, "decode"))


def test_no_schedule_changes_a_bit(calls: Any, runtime_of: Any, any_schedule: Any) -> None:
    for dtype in ("float32", "float16"):
        case = calls.draw(10, (1, 8, 2, 1, 400, 64, 64), dtype, mask=CAUSAL)
        calm = calls.attend(runtime_of(schedule="greedy", copies="eager"), case, "decode")
        calls.assert_same_bits(calm, calls.attend(any_schedule, case, "decode"))


@pytest.mark.parametrize(
    "options", [{"mask": CAUSAL}, {"mask": ak.Mask.window(99)}, {"bias": BIAS}, {"mask": DOCUMENTS}]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_row_does_not_see_changes_no_bit(calls: Any, runtime: Any, options: Any, dtype: str) -> None:
    case = calls.draw(11, SIZES, dtype, **options)
    clean = calls.attend(runtime, case, "decode")
    shown = reference.attention(*case.arrays, **case.options).problem.shown
    for row in range(T):
        dead = ~shown[:, :, row].reshape(B, K, H // K, S).any(axis=2)
        query, key, value = (array.copy() for array in case.arrays)
        key[dead], value[dead, ::2], value[dead, 1::2] = np.nan, np.inf, np.nan
        found = calls.attend(runtime, case.holding(query, key, value), "decode")
        calls.assert_same_bits([part[:, :, row] for part in found], [part[:, :, row] for part in clean])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_row_sees_propagates(calls: Any, runtime: Any, dtype: str) -> None:
    case = calls.draw(12, (1, 2, 1, 2, 300, 64, 64), dtype, mask=CAUSAL)
    case.arrays[2][0, 0, 299, 5] = np.nan  # which the second query sees alone
    found = calls.attend(runtime, case, "decode").output[0]
    assert np.isnan(found[:, 1, 5]).all()
    assert np.isfinite(found[:, 0]).all()
    assert np.isfinite(found[:, 1, :5]).all()


DEVICES = [Device(75, 40, 64 * 1024), Device(86, 82, 99 * 1024), Device(90, 132, 227 * 1024)]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: f"sm_{device.arch}")
@pytest.mark.parametrize("kind", decode.KINDS)
@pytest.mark.parametrize("head_size", [64, 128, 192, 256])
def test_every_device_has_a_tile(device: Device, kind: str, head_size: int) -> None:
    for dtype in DTYPES:
        for rows in (1, 3, 8, 64):
            work = decode.Work(dtype, kind, head_size, rows, features=True)
            tile = decode.tile_for(device, work)
            assert tile.shared_bytes(kind, features=True) <= device.smem_optin
            assert tile.size >= head_size
            assert tile.rows >= min(rows, 8) or tile.warps == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("softcap", [None, 3.0], ids=["plain", "options"])
def test_memory_is_what_was_said(calls: Any, runtime: Any, dtype: str, head_dim: int, softcap: Any) -> None:
    case = calls.draw(13, (1, 4, 1, 1, 100, head_dim, head_dim), dtype, softcap=softcap)
    calls.attend(runtime, case, "decode")
    features = softcap is not None
    tile = decode.tile_for(runtime.device, decode.Work(dtype, dtype, head_dim, 4, features))
    source, name = tile.kernel(dtype, features)
    stats = runtime.module(source, (name,)).get_function(name).stats
    assert stats.smem_bytes == tile.shared_bytes(dtype, features)
    assert stats.ldmatrix_conflicts == 0


def request_of(**changed: Any) -> ak.AttentionRequest:
    sizes = ("numpy.ndarray",), "cpu", "float16", "float16", 1, 2, 1, 2, 64, 64, 64
    return ak.AttentionRequest(*sizes)._replace(**changed)


NATIVE = StoredKind("float16", "float16", "float16", paged=False, aligned=True)
REFUSED = [
    ("query_length", {"query_length": 33}, NATIVE, DEVICES[2]),
    ("query_length", {"query_length": 9, "dtype": "float32"}, NATIVE, DEVICES[2]),
    ("kv_dtype", {}, NATIVE._replace(key="int8"), DEVICES[2]),
    ("kv_dtype", {}, NATIVE._replace(key="float64", value="float64"), DEVICES[2]),
    ("head_dim", {}, NATIVE, Device(80, 1, 8 * 1024)),
    ("head_dim", {"head_dim": 257}, NATIVE, DEVICES[2]),
]


@pytest.mark.parametrize(("field", "changed", "kind", "device"), REFUSED)
def test_refusals(field: str, changed: dict[str, Any], kind: StoredKind, device: Device) -> None:
    assert decode.refusals(request_of(), NATIVE, DEVICES[0]) == []
    assert [reason.field for reason in decode.refusals(request_of(**changed), kind, device)] == [field]
