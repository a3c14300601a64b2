"""flash_forward_mma against the oracle: head sizes, grouped rows, every option, strides, pages, schedules, tiles."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.call import describe_call, gather_options
from attnkit_cupy import mma, raw
from attnkit_cupy.runtime import Device
from attnkit_cupy.stored import Stored, StoredKind

NUMERICS = {"float16": "fa-16+truncating", "bfloat16": "fa-16+truncating"}
CAUSAL = ak.Mask.causal()
B, H, K, T, S, D = 2, 6, 2, 27, 75, 40
SIZES = (B, H, K, T, S, D, D)
RNG = np.random.default_rng(0)
BIAS = RNG.standard_normal((B, 1, T, S)).astype(np.float32)
BIAS[..., ::5] = -np.inf
DOCUMENTS = ak.Mask.documents(np.sort(RNG.integers(0, 3, (B, T))), np.sort(RNG.integers(0, 3, S)))
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"mask": CAUSAL},
    "window": {"mask": ak.Mask.window(9, 4)},
    "causal window": {"mask": CAUSAL & ak.Mask.window(20)},
    "prefix": {"mask": ak.Mask.prefix(50)},
    "chunked": {"mask": ak.Mask.chunked(16) & ak.Mask.chunked(24)},
    "documents": {"mask": CAUSAL & DOCUMENTS},
    "dense": {"mask": ak.Mask.dense(RNG.random((1, H, T, S)) < 0.7)},
    "bias": {"bias": BIAS},
    "alibi": {"alibi": RNG.random((B, H)), "mask": CAUSAL},
    "softcap": {"softcap": 2.0},
    "negative scale": {"scale": -0.3},
    "scale beyond floats": {"scale": 1e-44, "softcap": 1.0},
    "sinks": {"sinks": np.array([1.5, -np.inf, 0.0, 30.0, -3.0, 2.0], np.float32), "mask": CAUSAL},
    "lengths": {"query_lengths": np.array([T, 4]), "kv_lengths": np.array([0, 68]), "mask": CAUSAL},
    "offsets": {"query_offset": np.array([3, -9]), "key_offset": np.array([0, 40]), "mask": ak.Mask.prefix(44)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_options(calls: Any, runtime: Any, options: dict[str, Any], dtype: str) -> None:
    case = calls.draw(1, SIZES, dtype, **options)
    calls.check(case, calls.attend(runtime, case, "mma"), NUMERICS)


@pytest.mark.parametrize("seed", range(6))
def test_options_together(calls: Any, runtime: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = {}
    for name in rng.choice(list(OPTIONS), 5, replace=False):
        options |= OPTIONS[name]
    case = calls.draw(seed, SIZES, "bfloat16", **options)
    calls.check(case, calls.attend(runtime, case, "mma"), NUMERICS)


@pytest.mark.parametrize(
    ("head_dim", "value_dim"),
    [(1, 1), (16, 16), (40, 24), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (7, 33), (20, 130)],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_head_sizes(calls: Any, runtime: Any, head_dim: int, value_dim: int, dtype: str) -> None:
    case = calls.draw(2, (1, 2, 1, 21, 70, head_dim, value_dim), dtype, mask=CAUSAL)
    calls.check(case, calls.attend(runtime, case, "mma"), NUMERICS)


SHAPES = [
    (1, 1, 1, 1, 1, 64, 64),
    (1, 1, 1, 1, 200, 64, 64),
    (1, 5, 1, 13, 64, 64, 64),  # 65 rows: a tile and a row
    (2, 2, 2, 133, 77, 64, 64),  # rows that see no key, under a causal mask
    (1, 3, 1, 77, 133, 64, 64),
]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("mask", [None, CAUSAL, CAUSAL & ak.Mask.window(30)], ids=["whole", "causal", "window"])
def test_shapes(calls: Any, runtime: Any, sizes: tuple[int, ...], mask: ak.Mask | None) -> None:
    case = calls.draw(3, sizes, "float16", mask=mask)
    calls.check(case, calls.attend(runtime, case, "mma"), NUMERICS)


@pytest.mark.parametrize("sizes", [(2, 2, 1, 3, 0, 8, 8), (2, 2, 1, 3, 5, 8, 0), (1, 1, 1, 3, 70, 64, 64)], ids=str)
@pytest.mark.parametrize("kind", ["normal", "peaky", "huge"])
def test_distributions_and_empty_axes(calls: Any, runtime: Any, sizes: tuple[int, ...], kind: str) -> None:
    case = calls.draw(4, sizes, "bfloat16", kind, sinks=np.array([2.0, -np.inf][: sizes[1]], np.float32))
    calls.check(case, calls.attend(runtime, case, "mma"), NUMERICS)


def views(array: Any) -> dict[str, Any]:
    """Lay an array ``[B, H, T, D]`` out in other ways."""
    batch, heads, rows, size = array.shape
    wide = np.full((batch, heads, rows, size + 9), np.nan, array.dtype)
    wide[..., 1 : size + 1] = array
    aligned = np.full((batch, heads, rows, size + 16), np.nan, array.dtype)
    aligned[..., 8 : size + 8] = array
    return {
        "tokens first": array.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
        "at odd addresses": wide[..., 1 : size + 1],
        "within wider rows": aligned[..., 8 : size + 8],
        "backwards": array[:, ::-1, ::-1].copy()[:, ::-1, ::-1],
    }


@pytest.mark.parametrize("name", ["tokens first", "at odd addresses", "within wider rows", "backwards"])
@pytest.mark.parametrize("head_dim", [24, 33])
def test_strides_change_no_bit(calls: Any, runtime: Any, name: str, head_dim: int) -> None:
    case = calls.draw(5, (2, 4, 2, 19, 80, head_dim, head_dim), "float16", mask=CAUSAL)
    expected = calls.attend(runtime, case, "mma")
    calls.check(case, expected, NUMERICS)
    strided = case.holding(*(views(array)[name] for array in case.arrays))
    calls.assert_same_bits(calls.attend(runtime, strided, "mma"), expected)
    mixed = case.holding(case.arrays[0], views(case.arrays[1])[name], case.arrays[2])
    calls.assert_same_bits(calls.attend(runtime, mixed, "mma"), expected)


def test_offsets_beyond_32_bits(calls: Any, runtime: Any) -> None:
    case = calls.draw(6, (1, 2, 2, 5, 6, 64, 64), "float16")
    step = 2**31 + 64  # elements from head to head; memory that is never touched is never there
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)  # named since 3.13
    room = np.frombuffer(mmap.mmap(-1, 2 * (step + 2**16), flags), np.float16)
    far = np.lib.stride_tricks.as_strided(room, (1, 2, 6, 64), (0, 2 * step, 128, 2))
    far[:] = case.arrays[1]
    expected = calls.attend(runtime, case, "mma")
    calls.assert_same_bits(calls.attend(runtime, case.holding(case.arrays[0], far, case.arrays[2]), "mma"), expected)


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("head_dim", [24, 20])
def test_pages(calls: Any, runtime: Any, page_size: int, head_dim: int) -> None:
    case = calls.draw(7, (2, 4, 2, 9, 70, head_dim, head_dim), "bfloat16", mask=CAUSAL, kv_lengths=np.array([70, 33]))
    pages, table = paged(case, page_size)
    query, key, value = case.arrays
    request, operands = describe_call(query, key, value, gather_options(**case.options), True, cached=True)
    stored = Stored.of_pages(pages, table, runtime)
    assert stored.pages is not None
    found = raw.attend(runtime, request, query, stored, operands, "mma")
    calls.check(case, found, NUMERICS)
    calls.assert_same_bits(found, calls.attend(runtime, case, "mma"))


def paged(case: Any, size: int) -> tuple[ak.Pages, ak.SlotTable]:
    """Store keys and values in pages in any order; what is stored nowhere is NaN."""
    backend, (_, key, value) = ak.get_backend("numpy"), case.arrays
    lengths = [int(length) for length in case.options["kv_lengths"]]
    counts = [-(-length // size) for length in lengths]
    order = np.random.default_rng(0).permutation(sum(counts)).tolist()
    rows = [[order.pop() for _ in range(count)] for count in counts]
    spans = tuple(
        tuple((page * size, page * size + min(size, length - size * i)) for i, page in enumerate(row))
        for row, length in zip(rows, lengths, strict=True)
    )
    table, made = ak.SlotTable(spans), []
    for array in (key, value):
        plane = np.full((array.shape[1], sum(counts) * size, array.shape[3]), np.nan, array.dtype)
        for sequence in range(len(lengths)):
            backend.write(
                plane, table.slots[sequence : sequence + 1], array[sequence : sequence + 1, :, : table.longest]
            )
        made.append(ak.Planes((plane,), ak.Codec.model_validate("native"), array.shape[3], array.dtype.name))
    return ak.Pages(made[0], made[1], size), table


def test_no_schedule_changes_a_bit(calls: Any, runtime_of: Any, any_schedule: Any) -> None:
    for head_dim, options in ((64, {"mask": CAUSAL}), (128, {"mask": CAUSAL, "softcap": 3.0}), (9, {})):
        case = calls.draw(8, (1, 4, 1, 70, 200, head_dim, head_dim), "float16", **options)
        calm = calls.attend(runtime_of(schedule="greedy", copies="eager"), case, "mma")
        calls.assert_same_bits(calm, calls.attend(any_schedule, case, "mma"))


@pytest.mark.parametrize(
    "options", [{"mask": CAUSAL}, {"mask": ak.Mask.window(9)}, {"bias": BIAS}, {"mask": DOCUMENTS}]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_row_does_not_see_changes_no_bit(calls: Any, runtime: Any, options: Any, dtype: str) -> None:
    case = calls.draw(9, SIZES, dtype, **options)
    clean = calls.attend(runtime, case, "mma")
    shown = reference.attention(*case.arrays, **case.options).problem.shown
    for row in (0, T // 2):
        dead = ~shown[:, :, row].reshape(B, K, H // K, S).any(axis=2)
        assert dead.any()
        query, key, value = (array.copy() for array in case.arrays)
        key[dead], value[dead, ::2], value[dead, 1::2] = np.nan, np.inf, np.nan
        found = calls.attend(runtime, case.holding(query, key, value), "mma")
        calls.assert_same_bits([part[:, :, row] for part in found], [part[:, :, row] for part in clean])


def test_what_a_row_sees_propagates(calls: Any, runtime: Any) -> None:
    case = calls.draw(10, (1, 2, 1, 20, 90, 64, 64), "float16", mask=CAUSAL)
    case.arrays[2][0, 0, 75, 5] = np.nan  # which rows from 5 on see
    found = calls.attend(runtime, case, "mma").output[0, :, :, :6]
    assert np.isnan(found[:, 5:, 5]).all()
    assert np.isfinite(found[:, :5]).all()
    assert np.isfinite(found[..., :5]).all()


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("softcap", [None, 3.0], ids=["plain", "options"])
def test_memory_is_what_was_said_and_without_conflicts(calls: Any, runtime: Any, head_dim: int, softcap: Any) -> None:
    case = calls.draw(11, (1, 1, 1, 150, 150, head_dim, head_dim), "float16", mask=CAUSAL, softcap=softcap)
    calls.attend(runtime, case, "mma")
    features = softcap is not None
    tile = mma.tile_for(runtime.device, head_dim, 150, features)
    name = tile.kernel("attn::f16", features)
    stats = runtime.module(mma.SOURCE, (name,)).get_function(name).stats
    assert stats.smem_bytes == tile.shared_bytes(features)
    assert stats.ldmatrix_conflicts == 0
    assert stats.ldmatrix > 0 < stats.cp_async


DEVICES = [Device(75, 40, 64 * 1024), Device(86, 82, 99 * 1024), Device(80, 108, 163 * 1024)]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: f"sm_{device.arch}")
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_every_device_has_a_tile(calls: Any, runtime_of: Any, device: Device, head_dim: int) -> None:
    for options in ({}, {"softcap": 3.0}):
        case = calls.draw(12, (1, 1, 1, 40, 70, head_dim, head_dim), "float16", **options)
        calls.check(case, calls.attend(runtime_of(device=device), case, "mma"), NUMERICS)


def test_tiles_are_chosen_by_rows() -> None:
    device = Device(90, 132, 227 * 1024)
    assert [mma.tile_for(device, 64, rows, False).rows for rows in (1, 64, 65, 10**6)] == [64, 64, 128, 128]
    assert mma.tile_for(device, 65, 100, False).size == 128


def request_of(**changed: Any) -> ak.AttentionRequest:
    sizes = ("numpy.ndarray",), "cpu", "float16", "float16", 1, 2, 1, 9, 64, 64, 64
    return ak.AttentionRequest(*sizes)._replace(**changed)


NATIVE = StoredKind("float16", "float16", "float16", paged=False, aligned=True)
REFUSED = [
    ("dtype", {"dtype": "float32"}, NATIVE._replace(key="float32", value="float32", dtype="float32"), DEVICES[2]),
    ("kv_dtype", {}, NATIVE._replace(key="int8"), DEVICES[2]),
    ("kv_dtype", {"dtype": "bfloat16"}, NATIVE, DEVICES[2]),
    ("device", {"dtype": "bfloat16"}, StoredKind("bfloat16", "bfloat16", "bfloat16", False, True), DEVICES[0]),
    ("head_dim", {"value_dim": 257}, NATIVE, DEVICES[2]),
    ("head_dim", {}, NATIVE, Device(80, 1, 16 * 1024)),
]


@pytest.mark.parametrize(("field", "changed", "kind", "device"), REFUSED)
def test_refusals(field: str, changed: dict[str, Any], kind: StoredKind, device: Device) -> None:
    assert mma.refusals(request_of(), NATIVE, DEVICES[0]) == []
    assert [reason.field for reason in mma.refusals(request_of(**changed), kind, device)] == [field]
