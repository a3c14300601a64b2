"""Head counts, head sizes and lengths that fit no tile (A9, A12)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference

CAUSAL = ak.Mask.causal()


@pytest.mark.fault("onnx/onnx#7274")
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (6, 3), (3, 1)])
def test_a_group_shares_the_key_head_next_to_it(attend, lab, heads, kv_heads) -> None:
    """The specification itself repeated key/value heads as 0, 1, 0, 1 where everyone has 0, 0, 1, 1."""
    query, key, value = lab.draw(1, heads, 2, 3, kv_heads=kv_heads)
    value[...] = np.arange(kv_heads)[:, None, None]
    output = attend(query, key, value).output
    lab.close(output[0, :, 0, 0], np.repeat(np.arange(kv_heads), heads // kv_heads))


@pytest.mark.fault("fkodom/grouped-query-attention-pytorch#5")
def test_queries_of_a_group_are_not_averaged(attend, lab) -> None:
    """The queries of a group were added up to the number of key/value heads."""
    query, ramp = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1), np.array([0, 1], np.float32).reshape(1, 1, 2, 1)
    output = attend(query, ramp, ramp, scale=1).output
    lab.close(output[0, :, 0, 0], [0.5, 0.731059, 0.880797, 0.952574])
    query, key, value = lab.draw(2, 6, 3, 7, kv_heads=2)
    repeated = attend(query, key.repeat(3, axis=1), value.repeat(3, axis=1)).output
    lab.close(attend(query, key, value).output, repeated, 1e-5)


@pytest.mark.fault("pytorch/pytorch#169222")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_every_key_length_around_a_tile(attend, lab, dtype) -> None:
    """Lengths that were no multiple of 32 read past the end: text was fine at 32 and 64 tokens, not between."""
    edges = (32, 64, 128, 256, 512)
    for keys in (1, 38, 70, *(edge + step for edge in edges for step in (-1, 0, 1))):
        query, *held = lab.draw(1, 2, 1, keys, dtype=dtype, seed=keys)
        guarded = [np.full((1, 2, keys + 40, 8), np.nan, dtype) for _ in held]
        for buffer, array in zip(guarded, held, strict=True):
            buffer[:, :, :keys] = array
        attend.checked(query, *(buffer[:, :, :keys] for buffer in guarded), mask=CAUSAL)


@pytest.mark.fault("pytorch/pytorch#169222")
@pytest.mark.parametrize("max_length", [None, 70])
def test_decoding_one_token_at_a_time(path, attend, lab, max_length) -> None:
    """The same, as it was seen: a cache that grows by a token."""
    query, key, value = lab.draw(1, 2, 70, 70)
    whole = reference.attention(query, key, value, mask=CAUSAL).output
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=8, max_length=max_length), backend=path)
    for token in range(70):
        now = slice(token, token + 1)
        cache[0].append(key[:, :, now], value[:, :, now])
        found = attend.only_if_taken(lambda now=now: cache[0].attend(query[:, :, now], mask=CAUSAL))
        lab.close(found, whole[:, :, now], 1e-5)


@pytest.mark.fault("triton-lang/triton#630")
@pytest.mark.parametrize("rows", [5, 17])
def test_odd_sizes_in_every_dimension(attend, lab, rows) -> None:
    """The length of a reduction was no multiple of the block, and its tail was not masked."""
    attend.checked(*lab.draw(1, 3, rows, 37, head_dim=9, value_dim=7))
    attend.checked(*lab.draw(1, 3, rows, 37, head_dim=9, value_dim=7), mask=CAUSAL & ak.Mask.window(11))
    attend.checked(*lab.draw(1, 1, 3, 1001, head_dim=3))
    attend.checked(*lab.draw(1, 1, 2, 3, head_dim=1001))


@pytest.mark.fault("flashinfer-ai/flashinfer#4299")
@pytest.mark.parametrize("size", [1, 3, 8, 40, 65, 72, 80, 96, 100, 127])
def test_every_channel_of_every_head_size(attend, lab, size) -> None:
    """A head size of 72 was divided by 16 and cut: 64 channels took part, and 8 columns were never written."""
    query, key, value = lab.draw(1, 1, 2, 5, head_dim=size)
    query[..., :-1], key[..., :-1] = 0, 0  # the last channel alone decides
    value[...] = np.arange(size) + np.arange(5)[:, None] / 8
    used = [np.full_like(query, np.nan) for _ in range(16)]
    del used
    attend.checked(query, key, value)


@pytest.mark.fault("microsoft/onnxruntime#28388")
@pytest.mark.parametrize("size", [256, 257, 512])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("options", [{}, {"kv_lengths": [3, 9]}, {"mask": CAUSAL}], ids=["plain", "lengths", "causal"])
def test_large_head_sizes_with_every_option(attend, lab, size, kv_heads, options) -> None:
    """A head size of 512 outgrew shared memory, but only where lengths were given."""
    attend.checked(*lab.draw(2, 2, 3, 9, kv_heads=kv_heads, head_dim=size), **options)


@pytest.mark.fault("pytorch/pytorch#176767")
@pytest.mark.parametrize("value_dim", [1, 24, 33])
def test_values_of_another_size(attend, lab, value_dim) -> None:
    """The output had the query's head size, and columns that were never written."""
    found = attend.checked(*lab.draw(1, 1, 16, 16, head_dim=32, value_dim=value_dim), mask=CAUSAL)
    assert found.output.shape == (1, 1, 16, value_dim)
