"""Which path of the torch backend is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnkit as ak

BACKEND = ak.get_backend("torch")


def chosen(
    rows: int,
    keys: int,
    *,
    batch: int = 1,
    heads: int = 8,
    kv_heads: int = 8,
    dtype: torch.dtype = torch.float32,
    lse: bool = False,
    **options: Any,
) -> str | None:
    shapes = (batch, heads, rows, 64), (batch, kv_heads, keys, 64), (batch, kv_heads, keys, 64)
    arrays = [torch.empty(shape, dtype=dtype) for shape in shapes]
    return ak.explain(*arrays, **options, lse=lse, backend="torch").path


def test_every_path_is_somewhere_in_the_order() -> None:
    for rows in (1, 16, 2048):
        arrays = [torch.empty(1, 2, rows, 16)] * 3
        request = ak.explain(*arrays).request
        assert sorted(BACKEND.preference(request)) == sorted(BACKEND.paths)


def test_causal_prefill_takes_the_fused_kernel() -> None:
    assert chosen(2048, 2048, mask=ak.Mask.causal()) == "sdpa"
    assert chosen(2048, 2048) == "sdpa"


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_a_step_of_decoding_folds_the_group(kv_heads: int) -> None:
    for mask in (None, ak.Mask.causal(), ak.Mask.causal() & ak.Mask.window(512)):
        assert chosen(1, 8192, kv_heads=kv_heads, mask=mask) == "decode"


def test_what_only_tiles_can_do_in_little_memory_takes_them() -> None:
    for options in ({"mask": ak.Mask.window(128)}, {"softcap": 20.0, "mask": ak.Mask.causal()}):
        assert chosen(4096, 4096, **options) == "tiled"


def test_the_batch_does_not_matter() -> None:
    for rows in (1, 4, 64, 512):
        for options in ({}, {"softcap": 3.0}, {"mask": ak.Mask.causal()}, {"kv_lengths": 100}):
            assert chosen(rows, 512, **options) == chosen(rows, 512, batch=64, **options)


def test_every_option_finds_a_path() -> None:
    everything = {
        "mask": ak.Mask.window(4, 2) & ak.Mask.chunked(8) & ak.Mask.dense(np.ones((5, 9), bool)),
        "softcap": 2.0,
        "scale": -1.0,
        "bias": torch.zeros(5, 9),
        "alibi": torch.zeros(8),
        "sinks": torch.zeros(8),
        "query_lengths": 4,
        "kv_lengths": 7,
        "query_offset": 3,
        "key_offset": 1,
    }
    assert chosen(5, 9, lse=True, **everything) in BACKEND.paths
    assert chosen(500, 900, lse=True, **{**everything, "mask": None, "bias": None}) in BACKEND.paths
