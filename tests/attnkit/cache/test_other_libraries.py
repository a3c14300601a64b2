"""Queries of one library over the cache of another, small ones that are copied, large ones read in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnkit as ak

OTHERS = {"numpy": torch.from_numpy, "torch": lambda array: array}


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("window", [6, 4500])
@pytest.mark.parametrize("codec", ["native", "int8"])
def test_a_query_of_another_library(backend, window, codec) -> None:
    config = ak.KVCacheConfig(
        num_kv_heads=2, head_dim=64, layout="ring", window=window, max_append=window, batch_size=2, codec=codec
    )
    cache, make = ak.make_cache(config, backend=backend), ak.get_backend(backend).from_numpy
    rng = np.random.default_rng(0)
    for _ in range(3):  # the ring goes round: no sequence lies in one span
        cache[0].append(*(make(rng.standard_normal((2, 2, window, 64), np.float32)) for _ in "kv"))
    query = rng.standard_normal((2, 4, 1, 64), np.float32)
    expected = ak.get_backend(backend).to_numpy(cache[0].attend(make(query), mask=ak.Mask.causal()))
    found = cache[0].attend(OTHERS[backend](query), mask=ak.Mask.causal())
    assert type(found) is type(OTHERS[backend](query))
    np.testing.assert_array_equal(np.asarray(found), expected)
