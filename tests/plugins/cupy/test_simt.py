"""flash_forward_simt against the oracle: shapes, element types, strides, every option and pairs of them, schedules."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_cupy import simt
from attnkit_cupy.runtime import Device

B, H, K, T, S, D, E = 2, 4, 2, 11, 23, 24, 20
SIZES = (B, H, K, T, S, D, E)
RNG = np.random.default_rng(0)
BIAS = RNG.standard_normal((B, 1, T, S)).astype(np.float32)
BIAS[..., ::5] = -np.inf
DOCUMENTS = ak.Mask.documents(np.sort(RNG.integers(0, 3, (B, T))), np.sort(RNG.integers(0, 3, S)))
OPTIONS: dict[str, tuple[str, Any]] = {
    "causal": ("mask", ak.Mask.causal()),
    "window": ("mask", ak.Mask.window(4, 2)),
    "prefix": ("mask", ak.Mask.prefix(5)),
    "chunked": ("mask", ak.Mask.chunked(7) & ak.Mask.chunked(10)),
    "documents": ("mask", DOCUMENTS),
    "dense": ("mask", ak.Mask.dense(RNG.random((1, H, 1, S)) < 0.7)),
    "bias": ("bias", BIAS),
    "bias of halves": ("bias", BIAS[:1, :, :1].astype(np.float16)),
    "bias of doubles": ("bias", BIAS.astype(np.float64)[:, :, :, ::-1]),
    "alibi": ("alibi", RNG.random((B, H))),
    "alibi of heads": ("alibi", RNG.random(H).astype(np.float16)),
    "softcap": ("softcap", 2.0),
    "scale": ("scale", -0.3),
    "no scale": ("scale", 0.0),
    "sinks": ("sinks", np.array([1.5, -np.inf, 0.0, 30.0], np.float32)),
    "query lengths": ("query_lengths", np.array([T, 4])),
    "key lengths": ("kv_lengths", np.array([0, 17])),
    "query offset": ("query_offset", np.array([3, -2])),
    "key offset": ("key_offset", np.array([0, 40])),
}
PAIRS = [pair for pair in combinations(OPTIONS, 2) if OPTIONS[pair[0]][0] != OPTIONS[pair[1]][0]]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option(calls: Any, runtime: Any, name: str) -> None:
    case = calls.draw(1, SIZES, **dict([OPTIONS[name]]))
    calls.check(case, calls.attend(runtime, case, "simt"))


@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
def test_a_pair_of_options(calls: Any, runtime: Any, names: tuple[str, str]) -> None:
    case = calls.draw(2, SIZES, **{OPTIONS[name][0]: OPTIONS[name][1] for name in names})
    calls.check(case, calls.attend(runtime, case, "simt"))


@pytest.mark.parametrize(
    "mask",
    [
        ak.Mask.causal() & ak.Mask.window(6) & DOCUMENTS,
        ak.Mask.prefix(4) & ak.Mask.chunked(8) & ak.Mask.dense(RNG.random((T, S)) < 0.8),
        DOCUMENTS & ak.Mask.documents(np.arange(T) // 4, np.arange(S) // 8),
        DOCUMENTS
        & ak.Mask.documents(np.arange(T) // 4, np.arange(S) // 8)
        & ak.Mask.documents(RNG.integers(0, 2, T), RNG.integers(0, 2, (B, S))),
        ak.Mask.dense(RNG.random((B, 1, T, S)) < 0.8) & ak.Mask.dense(RNG.random((H, 1, S)) < 0.8),
        ak.Mask.chunked(3) & ak.Mask.chunked(5) & ak.Mask.chunked(7) & ak.Mask.chunked(11),
    ],
    ids=["window of documents", "all kinds", "two documents", "three documents", "two dense", "four chunks"],
)
def test_joined_masks(calls: Any, runtime: Any, mask: ak.Mask) -> None:
    case = calls.draw(3, SIZES, mask=mask)
    calls.check(case, calls.attend(runtime, case, "simt"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal", "peaky", "huge"])
def test_element_types(calls: Any, runtime: Any, dtype: str, kind: str) -> None:
    case = calls.draw(4, (1, 2, 1, 40, 150, 64, 64), dtype, kind, mask=ak.Mask.causal())
    calls.check(case, calls.attend(runtime, case, "simt"))


SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 200, 33, 1),
    (1, 6, 2, 5, 70, 5, 31),  # 15 rows in a tile of 16
    (2, 3, 1, 130, 67, 64, 64),
    (1, 5, 5, 17, 65, 80, 96),
    (1, 2, 1, 33, 40, 128, 128),
    (1, 2, 1, 20, 40, 130, 256),
    (1, 16, 1, 1, 40, 200, 8),
]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("mask", [None, ak.Mask.causal()], ids=["whole", "causal"])
def test_shapes(calls: Any, runtime: Any, sizes: tuple[int, ...], mask: ak.Mask | None) -> None:
    case = calls.draw(5, sizes, mask=mask)
    calls.check(case, calls.attend(runtime, case, "simt"))


@pytest.mark.parametrize(
    "sizes", [(0, 2, 1, 3, 5, 4, 4), (2, 2, 1, 0, 5, 4, 4), (2, 2, 1, 3, 0, 4, 4), (2, 2, 1, 3, 5, 4, 0)], ids="BTSE"
)
@pytest.mark.parametrize("sinks", [None, np.array([2.0, -np.inf], np.float32)], ids=["", "sinks"])
def test_empty_axes(calls: Any, runtime: Any, sizes: tuple[int, ...], sinks: Any) -> None:
    case = calls.draw(6, sizes, sinks=sinks)
    calls.check(case, calls.attend(runtime, case, "simt"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", ["priority", "random"])
def test_no_schedule_changes_a_bit(calls: Any, runtime_of: Any, schedule: str, seed: int) -> None:
    case = calls.draw(7, (1, 2, 1, 70, 140, 32, 32), mask=ak.Mask.causal())
    calm = calls.attend(runtime_of(schedule="greedy", copies="eager"), case, "simt")
    calls.assert_same_bits(calm, calls.attend(runtime_of(schedule=schedule, seed=seed), case, "simt"))


def test_a_sequence_is_the_same_alone(calls: Any, runtime: Any) -> None:
    case = calls.draw(8, (3, 4, 2, 20, 50, 32, 32), mask=ak.Mask.causal())
    whole = calls.attend(runtime, case, "simt")
    alone = calls.attend(runtime, case.holding(*(array[1:2] for array in case.arrays)), "simt")
    calls.assert_same_bits(alone, type(whole)(*(array[1:2] for array in whole)))


@pytest.mark.parametrize("optin", [64 * 1024, 99 * 1024, 227 * 1024])
@pytest.mark.parametrize("head_dim", [1, 32, 33, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("rows", [1, 16, 17, 1000])
def test_tiles_fit_the_device(optin: int, head_dim: int, rows: int) -> None:
    tile = simt.tile_for(Device(75, 40, optin), head_dim, rows)
    assert tile.shared_bytes <= optin
    assert tile.head_dim >= head_dim
    assert (tile.rows == simt.FEW_ROWS) >= (rows <= simt.FEW_ROWS)


def test_the_smallest_device_runs_every_head_size(calls: Any, runtime_of: Any) -> None:
    turing = runtime_of(device=Device(75, 40, 64 * 1024))
    for head_dim in (32, 64, 128, 256):
        case = calls.draw(9, (1, 1, 1, 40, 40, head_dim, head_dim))
        calls.check(case, calls.attend(turing, case, "simt"))
