"""Every path against the oracle, within the error budget of the declared numerics.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


@pytest.mark.parametrize("seed", range(240))
@pytest.mark.usefixtures("small_tiles")
def test_random_calls(calls: Any, seed: int) -> None:
    case = calls.draw_case(seed)
    for path in calls.paths_for(case):
        calls.check(case, calls.run(case, path))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "peaky", "huge", "zero-sum", "ascending"])
def test_distributions(calls: Any, path: str, distribution: str, dtype: str) -> None:
    sizes = (1, 2, 1, 8, 1100, 80, 24)
    case = calls.Case(calls.draw(np.random.default_rng(5), distribution, sizes, dtype), {"mask": CAUSAL})
    calls.check(case, calls.run(case, path))


@pytest.mark.parametrize("rows", [127, 128, 129, 257])
@pytest.mark.parametrize(
    "mask", [None, CAUSAL, ak.Mask.window(100), ak.Mask.window(40, 30), ak.Mask.chunked(100), ak.Mask.prefix(150)]
)
def test_tile_edges(calls: Any, rows: int, mask: ak.Mask | None) -> None:
    arrays = calls.draw(np.random.default_rng(6), "normal", (1, 1, 1, rows, 300, 8, 8), "float32")
    case = calls.Case(arrays, {"mask": mask})
    calls.check(case, calls.run(case, "tiled"))


def test_keys_in_another_dtype_than_the_query(calls: Any, path: str) -> None:
    cache = ak.make_cache(
        ak.KVCacheConfig(num_layers=1, batch_size=2, num_kv_heads=2, head_dim=16, dtype="bfloat16"),
        backend=f"numpy:{path}",
    )
    query, key, value = calls.draw(np.random.default_rng(7), "normal", (2, 4, 2, 3, 9, 16, 16), "float32")
    cache[0].append(key, value)
    stored = [array.astype(calls.DTYPES["bfloat16"]).astype(np.float32) for array in (key, value)]
    case = calls.Case([query, *stored], {"mask": CAUSAL})
    calls.check(case, cache[0].attend_with_lse(query, mask=CAUSAL))


def test_the_formulas_of_the_definition(path: str) -> None:
    rng = np.random.default_rng(8)
    query, key, value = (rng.standard_normal((4, 6)) for _ in range(3))
    scores = query @ key.T / np.sqrt(6)
    scores[np.triu_indices(4, 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ value
    found = ak.attention(query, key, value, mask=CAUSAL, backend=f"numpy:{path}")
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-15)
