"""Equal calls give equal bits, whatever else runs and whatever the batch (contract A14)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()
# Sizes at which BLAS would use threads of its own, and the paths helpers.
LARGE = {
    "tiled": (3, 4, 2, 300, 700, 64, 64),
    "decode": (3, 6, 2, 2, 5000, 64, 64),
    "dense": (3, 4, 2, 64, 200, 32, 32),
}
SMALL = {"tiled": (3, 2, 2, 5, 9, 16, 16), "decode": (3, 4, 2, 1, 37, 16, 16), "dense": (3, 4, 2, 5, 9, 16, 16)}


def options_for(kind: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    if kind == "ragged":
        lengths = np.array([sizes[4], 2, sizes[4] // 2])
        return {"mask": CAUSAL, "kv_lengths": lengths}
    return {"mask": CAUSAL} if kind == "causal" else {}


@pytest.mark.parametrize("sizes", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("kind", ["plain", "causal", "ragged"])
def test_run_to_run(calls: Any, path: str, sizes: dict[str, tuple[int, ...]], kind: str) -> None:
    arrays = calls.draw(np.random.default_rng(0), "normal", sizes[path], "float32")
    case = calls.Case(arrays, options_for(kind, sizes[path]))
    first = calls.run(case, path)
    for _ in range(3):
        calls.assert_same_bits(first, calls.run(case, path))
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: calls.run(case, path), range(6)):
            calls.assert_same_bits(first, found)


@pytest.mark.parametrize("sizes", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("kind", ["plain", "causal", "ragged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_sequence_alone_and_in_a_batch(
    calls: Any, path: str, sizes: dict[str, tuple[int, ...]], kind: str, dtype: str
) -> None:
    arrays = calls.draw(np.random.default_rng(1), "normal", sizes[path], dtype)
    options = options_for(kind, sizes[path])
    together = calls.run(calls.Case(arrays, options), path)
    for b in range(3):
        own = {name: value[b : b + 1] if name == "kv_lengths" else value for name, value in options.items()}
        alone = calls.run(calls.Case([array[b : b + 1] for array in arrays], own), path)
        calls.assert_same_bits(alone, ak.AttentionOutput(together.output[b : b + 1], together.lse[b : b + 1]))
