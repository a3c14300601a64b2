"""Positions go on counting through caches, chunks and truncation, and are integers (A3, C1, C5, C6)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit.positional import apply_rope, rope_tables

Array = Any
SIZE = 8


@pytest.fixture
def module(path: str) -> ak.MultiHeadAttention:
    """One causal layer with rotary positions."""
    return layer(path, ak.Mask.causal())


def layer(path: str, mask: ak.Mask) -> ak.MultiHeadAttention:
    rng = np.random.default_rng(3)
    config = ak.AttentionConfig(num_heads=2, num_kv_heads=1, head_dim=4, mask=mask, rope=ak.RopeConfig(theta=100.0))
    shapes = ((SIZE, 8), (SIZE, 4), (SIZE, 4), (8, SIZE))
    return ak.MultiHeadAttention(config, *(rng.standard_normal(s).astype(np.float32) for s in shapes), backend=path)


def text(length: int, *, batch: int = 1, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((batch, length, SIZE)).astype(np.float32)


def empty_cache(path: str, *, batch: int = 1) -> ak.KVCache:
    return ak.make_cache(ak.KVCacheConfig(num_kv_heads=1, head_dim=4, batch_size=batch), backend=path)


@pytest.mark.fault("rajveer43/VeloxQuant-MLX#389")
@pytest.mark.parametrize(
    "forget", [lambda cache: cache.truncate(4), lambda cache: cache.drop(6)], ids=["truncate", "drop"]
)
def test_the_next_position_after_forgetting(path, attend, lab, module, forget) -> None:
    """Caches that evict gave the number of rows kept as the next position, and every later token was turned too little.

    A contiguous cache does not evict: its two counters are told apart by name, and agree; what is forgotten at the
    end is counted back, and the next token is turned by the position after the last one kept.
    """
    x = text(12)
    whole = attend.only_if_taken(lambda: module(x))
    cache = empty_cache(path)
    attend.only_if_taken(lambda: module(x[:, :10], cache=cache[0]))
    assert (cache.next_position.tolist(), cache.stored.tolist()) == ([10], [10])
    forget(cache)
    assert (cache.next_position.tolist(), cache.stored.tolist(), cache.seen.tolist()) == ([4], [4], [4])
    for start, stop in ((4, 5), (5, 12)):
        found = attend.only_if_taken(lambda start=start, stop=stop: module(x[:, start:stop], cache=cache[0]))
        lab.close(found, whole[:, start:stop], 1e-5)


@pytest.mark.fault("huggingface/transformers#43082")
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7, 10])
def test_any_chunking_of_a_prompt(path, attend, lab, module, chunk) -> None:
    """Later chunks of a prompt got wrong positions."""
    x, cache = text(10), empty_cache(path)
    parts = [x[:, start : start + chunk] for start in range(0, 10, chunk)]
    found = [attend.only_if_taken(lambda part=part: module(part, cache=cache[0])) for part in parts]
    lab.close(np.concatenate(found, axis=1), attend.only_if_taken(lambda: module(x)), 1e-5)


@pytest.mark.fault("unslothai/unsloth#3699")
def test_a_batch_of_unequal_lengths(path, attend, lab, module) -> None:
    """Under left padding every row took the shared slot as its position. Padding is on the right here."""
    x, lengths, cache = text(5, batch=2), [2, 5], empty_cache(path, batch=2)
    found = attend.only_if_taken(lambda: module(x, cache=cache[0], query_lengths=lengths))
    step = text(1, batch=2, seed=1)
    following = attend.only_if_taken(lambda: module(step, cache=cache[0]))
    for b, length in enumerate(lengths):
        whole = np.concatenate([x[b : b + 1, :length], step[b : b + 1]], axis=1)
        alone = attend.only_if_taken(lambda whole=whole: module(whole))
        lab.close(found[b, :length], alone[0, :length], 1e-5)
        lab.close(following[b], alone[0, length:], 1e-5)


@pytest.mark.fault("oarriaga/paz#415")
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_positions_are_integers(dtype) -> None:
    """Positions were held in bfloat16, which has no 257."""
    rope, heads = ak.RopeConfig(), np.ones((1, 1, 3000, 4), dtype)
    tables = rope_tables(rope, 4, np.arange(3000), heads)
    angles = np.arange(3000)[:, None] * np.array([1, 0.01])
    for table, exact in zip(tables, (np.cos(angles), -np.sin(angles)), strict=True):
        np.testing.assert_array_equal(table[:, :2], exact.astype(dtype))
    turned = apply_rope(rope, heads, tables)
    assert turned.dtype == np.dtype(dtype)
    assert (turned[0, 0, 257] != turned[0, 0, 256]).any()
    assert (turned[0, 0, 2049] != turned[0, 0, 2048]).any()


@pytest.mark.fault("oarriaga/paz#415")
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_masks_and_alibi_far_out(attend, lab, dtype) -> None:
    """The same where positions only compare: neighbours beyond 2048 are still told apart."""
    query, key, value = lab.level(3, 6, dtype=dtype)
    far = {"query_offset": 5003, "key_offset": 5000}
    found = attend(query, key, value, mask=ak.Mask.causal() & ak.Mask.window(2), **far).output
    lab.close(found[0, 0], [[0, 0, 1 / 2, 1 / 2, 0, 0], [0, 0, 0, 1 / 2, 1 / 2, 0], [0, 0, 0, 0, 1 / 2, 1 / 2]])
    attend.checked(query, key, value, alibi=np.array([0.5], dtype), **far)


@pytest.mark.fault("discuss.huggingface.co#143839")
@pytest.mark.parametrize("window", [3, 8, 20])
def test_with_and_without_a_cache(path, attend, lab, window) -> None:
    """A model wrote worse text with its cache on: positions, the rolling buffer or the mask may be to blame."""
    module, x, cache = layer(path, ak.Mask.causal() & ak.Mask.window(window)), text(12), empty_cache(path)
    for token in range(12):
        found = attend.only_if_taken(lambda token=token: module(x[:, token : token + 1], cache=cache[0]))
        whole = attend.only_if_taken(lambda token=token: module(x[:, : token + 1]))
        lab.close(found[:, 0], whole[:, -1], 1e-5)
