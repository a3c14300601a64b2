"""What the tiled path is for: memory that does not grow with T x S, and tiles that are never visited."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_numpy import tiled
from attnkit_numpy.running import RunningSoftmax

CAUSAL = ak.Mask.causal()


def test_memory_of_a_long_call() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 16384, 64)).astype(np.float32)
    mask = CAUSAL & ak.Mask.window(256)  # the same buffers as without, in a fraction of the time
    tracemalloc.start()
    try:
        output = ak.attention(x, x, x, mask=mask, backend="numpy:tiled")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < output.nbytes + 64 * 2**20


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Collect the sizes ``(n, w)`` of the tiles that are visited."""
    seen: list[tuple[int, int]] = []
    add = RunningSoftmax.add

    def spy(self: RunningSoftmax, scores: Any, value: Any) -> None:
        seen.append(scores.shape)
        add(self, scores, value)

    monkeypatch.setattr(RunningSoftmax, "add", spy)
    monkeypatch.setattr(tiled, "tile_sizes", lambda request: (32, 64))
    return seen


DOCUMENTS = np.repeat(np.arange(8), 64)
VISITED: dict[str, tuple[ak.Mask | None, int]] = {
    # mask, scores computed for 512 queries and keys
    "no mask": (None, 512 * 512),
    "causal": (CAUSAL, 32 * 32 * (16 * 17) // 2),
    "window": (ak.Mask.window(33), 32 * (32 + 15 * 64)),
    "chunked": (ak.Mask.chunked(32), 512 * 32),
    "documents": (ak.Mask.documents(DOCUMENTS, DOCUMENTS), 512 * 64),
    "dense": (ak.Mask.dense(np.arange(512)[None] < 64), 512 * 64),
}


@pytest.mark.parametrize(("mask", "expected"), VISITED.values(), ids=VISITED.keys())
def test_empty_tiles_are_not_visited(visits: list[tuple[int, int]], mask: ak.Mask | None, expected: int) -> None:
    x = np.random.default_rng(1).standard_normal((1, 1, 512, 8)).astype(np.float32)
    ak.attention(x, x, x, mask=mask, backend="numpy:tiled")
    assert sum(rows * keys for rows, keys in visits) == expected


def test_lengths_cut_the_work(visits: list[tuple[int, int]]) -> None:
    x = np.ones((2, 1, 512, 8), np.float32)
    ak.attention(x, x, x, query_lengths=[32, 0], kv_lengths=[64, 512], backend="numpy:tiled")
    assert visits == [(32, 64)]
