"""masks.cuh: every query sees one interval of keys, and a tile's union and core are those of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.call import describe_call, gather_options
from attnkit_cupy.call import prepare
from attnkit_cupy.stored import Stored

PROBE = """#include "masks.cuh"
namespace attn {
__global__ void intervals(const AttentionParams p, Interval* found) {
  const int b = blockIdx.x, query = threadIdx.x;
  found[b * p.queries + query] = interval_of(p, sequence_of(p, b), query);
}
__global__ void tiles(const AttentionParams p, Interval* found, int from, int to) {
  const Sequence s = sequence_of(p, blockIdx.x);
  found[2 * blockIdx.x] = union_of(p, s, from, to);
  found[2 * blockIdx.x + 1] = core_of(p, s, from, to);
}
}
"""
MASKS = {
    "none": None,
    "causal": ak.Mask.causal(),
    "window": ak.Mask.window(4),
    "look ahead": ak.Mask.window(2, 3),
    "left alone": ak.Mask.window(3, None),
    "right alone": ak.Mask.window(None, 1),
    "prefix": ak.Mask.prefix(6),
    "chunks": ak.Mask.chunked(5),
    "several chunks": ak.Mask.chunked(4) & ak.Mask.chunked(6) & ak.Mask.chunked(9),
    "joined": ak.Mask.causal() & ak.Mask.window(7) & ak.Mask.chunked(8),
    "prefix in a window": ak.Mask.prefix(9) & ak.Mask.window(5, 2),
}
NUMBERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lengths": {"kv_lengths": np.array([19, 3, 0]), "query_lengths": np.array([12, 12, 5])},
    "before": {"query_offset": np.array([-9, -2, 30])},
    "far": {"key_offset": np.array([0, 2**53 - 9, 7]), "query_offset": np.array([3, 2**53, -(2**53)])},
    "shifted": {"key_offset": np.array([5, -5, 1]), "kv_lengths": np.array([19, 10, 6])},
}
BATCH, QUERIES, KEYS = 3, 12, 19


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory, runtime_of: Any) -> Any:
    source: Path = tmp_path_factory.mktemp("masks") / "probe.cu"
    source.write_text(PROBE)
    return runtime_of().module(str(source), ("attn::intervals", "attn::tiles")).get_function


def shown_by(mask: ak.Mask | None, numbers: dict[str, Any]) -> Any:
    """Give what each query sees, ``[B, T, S]``."""
    arrays = [np.zeros((BATCH, 1, count, 1), np.float32) for count in (QUERIES, KEYS, KEYS)]
    return reference.attention(*arrays, mask=mask, **numbers).problem.shown[:, 0]


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_intervals_hold_what_is_visible(
    runtime: Any, probe: Any, mask: ak.Mask | None, numbers: dict[str, Any]
) -> None:
    packed, shown = params_of(runtime, mask, numbers), shown_by(mask, numbers)
    found = np.zeros((BATCH, QUERIES, 2), np.int32)
    probe("attn::intervals")((BATCH,), (QUERIES,), (packed, found))
    keys = np.arange(KEYS)
    np.testing.assert_array_equal((keys >= found[..., :1]) & (keys < found[..., 1:]), shown)
    assert (found[..., 0] <= found[..., 1]).all()
    for start in range(0, QUERIES, 5):
        check_tile(probe, packed, shown, start, min(start + 5, QUERIES))


def check_tile(probe: Any, packed: Any, shown: Any, start: int, stop: int) -> None:
    found = np.zeros((BATCH, 2, 2), np.int32)
    probe("attn::tiles")((BATCH,), (1,), (packed, found, np.int32(start), np.int32(stop)))
    keys, rows = np.arange(KEYS), shown[:, start:stop]
    union, core = ((keys >= found[:, i, :1]) & (keys < found[:, i, 1:]) for i in range(2))
    assert (rows.any(axis=1) <= union).all()
    assert (core <= rows.all(axis=1)).all()
    several = rows.any(axis=2).all(axis=1)  # no row is empty: both are exact, but for gaps between intervals
    np.testing.assert_array_equal(core[several], rows.all(axis=1)[several])


def params_of(runtime: Any, mask: ak.Mask | None, numbers: dict[str, Any]) -> Any:
    query, key = np.zeros((BATCH, 1, QUERIES, 4), np.float32), np.zeros((BATCH, 1, KEYS, 4), np.float32)
    request, operands = describe_call(query, key, key, gather_options(mask=mask, **numbers), False)
    stored = Stored.of_arrays(key, key, runtime)
    _KEPT[:] = [call := prepare(runtime, request, query, stored, operands, ak.AttentionOutput(query))]
    return call.params.packed()


_KEPT: list[Any] = []
"""What the params point at, until the next test."""
