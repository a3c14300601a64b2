"""What lies at dead slots and hidden keys never reaches a result (A8), and what is visible always counts (A6)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()
LARGEST = np.finfo(np.float32).max
HIDDEN = {
    "dense": {"mask": ak.Mask.dense([[True, False], [True, False]])},
    "bias": {"bias": np.array([[0, -np.inf], [0, -np.inf]], np.float32)},
    "lengths": {"kv_lengths": 1},
    "documents": {"mask": ak.Mask.documents([0, 0], [0, 1])},
    "causal": {"mask": CAUSAL, "query_offset": -1},
    "window": {"mask": ak.Mask.window(2, 0), "query_offset": -1},
    "prefix": {"mask": ak.Mask.prefix(1), "query_offset": -1},
    "chunked": {"mask": ak.Mask.chunked(2), "key_offset": 1, "query_offset": 0},
}


@pytest.mark.fault("pytorch/pytorch#101967")
@pytest.mark.parametrize("way", HIDDEN)
@pytest.mark.parametrize("poison", [1e10, np.nan, np.inf, -np.inf])
def test_a_hidden_key_may_hold_anything(attend, lab, way, poison) -> None:
    """NaN in a key and value that the mask hid still reached the output.

    Finite numbers, however large, change nothing on any path; NaN and infinity where the backend declares so, and
    everywhere beyond a length.
    """
    if attend.declared.poison == "padding" and way != "lengths":
        poison = np.nan_to_num(np.float32(poison), nan=LARGEST)
    query, key, value = lab.draw(1, 1, 2, 2, value_dim=2)
    key[..., 1, :], value[..., 1, :], value[..., 0, :] = 0, 0, [3, 4]
    clean = attend(query, key, value, **HIDDEN[way])
    key[..., 1, :], value[..., 1, :] = poison, poison
    found = attend(query, key, value, **HIDDEN[way])
    lab.same_bits(found.output, clean.output)
    lab.same_bits(found.lse, clean.lse)
    for row in found.output[0, 0, np.isfinite(found.lse[0, 0])]:
        lab.close(row, [3, 4])


@pytest.mark.fault("vllm-project/vllm#641")
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_slots_that_were_never_written(path, attend, lab, poison) -> None:
    """The unwritten tail of the last page of a cache held NaN patterns; 0 * NaN passed the mask."""
    query, key, value = lab.draw(1, 2, 2, 5)
    cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=2, head_dim=8, max_length=16), backend=path)
    for plane in cache.pages[0].planes:
        plane[...] = poison
    cache[0].append(key, value)
    found = attend.only_if_taken(lambda: cache[0].attend(query, mask=CAUSAL))
    lab.close(found, attend.checked(query, key, value, mask=CAUSAL).output)


@pytest.mark.fault("Dao-AILab/flash-attention#1745")
def test_padding_of_a_shorter_sequence(attend, lab) -> None:
    """A new generation of a kernel let NaN of the padding through where the one before had not."""
    _, key, value = lab.draw(2, 1, 1, 3, head_dim=64)
    query = np.full((2, 1, 1, 64), 0.5, np.float32)
    clean = attend.checked(query, key, value, kv_lengths=np.array([1, 3]))
    lab.close(clean.output[0, 0, 0], value[0, 0, 0])
    key[0, :, 1:], value[0, :, 1:] = np.nan, np.nan
    lab.same_bits(attend(query, key, value, kv_lengths=np.array([1, 3])).output, clean.output)


@pytest.mark.fault("triton-lang/triton#737")
@pytest.mark.parametrize("keys", [1, 5, 17, 33, 63, 65, 130])
def test_nothing_is_read_around_an_array(attend, lab, keys) -> None:
    """Masked loads without a fill value gave whatever lay behind the array, in float16."""
    arrays = lab.draw(1, 2, 2, keys, dtype=np.float16)
    inside = []
    for array in arrays:
        guarded = np.full((1, 2, array.shape[2] + 4, 12), np.nan, np.float16)
        guarded[:, :, 2:-2, 2:-2] = array
        inside.append(guarded[:, :, 2:-2, 2:-2])
    attend.checked(*inside, mask=CAUSAL)


@pytest.mark.fault("ggml-org/llama.cpp#6438")
@pytest.mark.parametrize("keys", [64, 700])
def test_a_tile_without_a_visible_key(attend, lab, keys) -> None:
    """The running maximum started at -inf, and a tile that a row saw nothing of made -inf - (-inf) of it."""
    query, key, value = lab.draw(2, 1, 4, keys)
    j, half = np.arange(keys), keys // 2
    shown = {"first": j >= half, "middle": (j < half // 2) | (j >= keys - half // 2), "last": j < half}
    for keep in shown.values():
        found = attend.checked(query, key, value, mask=ak.Mask.dense(np.broadcast_to(keep, (4, keys))))
        lab.close(found.output, attend(query, key[:, :, keep], value[:, :, keep]).output, 1e-5)
    by_row = np.stack([*shown.values(), j == half])
    attend.checked(query, key, value, mask=ak.Mask.dense(by_row))
    attend.checked(query, key, value, mask=ak.Mask.dense(np.stack([by_row[None], ~by_row[None]])))


@pytest.mark.fault("huggingface/transformers#27114")
def test_hidden_twice_is_hidden(attend, lab) -> None:
    """Two masks of very negative numbers were added, and the sum overflowed to -inf in some places only."""
    keep = np.array([False, False, False, True, True])
    expected = np.zeros((5, 5))
    expected[3, 3], expected[4, 3:] = 1, 1 / 2
    padding = ak.Mask.dense(keep[None])
    for mask in (CAUSAL & padding, padding & CAUSAL & padding, ak.Mask.dense(np.tri(5, dtype=bool)) & padding):
        lab.close(attend.weights(5, 5, mask=mask), expected)
    hidden = np.where(keep, 0, -np.inf).astype(np.float32)[None]
    lab.close(attend.weights(5, 5, mask=CAUSAL & padding, bias=hidden), expected)


@pytest.mark.fault("microsoft/onnxruntime#14363")
@pytest.mark.parametrize("score", [-12000, -2e4, -1e5, -1e6, -3e38])
def test_a_visible_score_below_any_sentinel(attend, lab, score) -> None:
    """Masking added -10000, and a hidden key won against a visible one with a lower score."""
    query, key = np.ones((1, 1, 1, 1), np.float32), np.array([score, 0], np.float32).reshape(1, 1, 2, 1)
    value = np.array([7, 1000], np.float32).reshape(1, 1, 2, 1)
    hidden = np.array([[0, -np.inf]], np.float32)
    for way in ({"mask": ak.Mask.dense([[True, False]])}, {"bias": hidden}, {"kv_lengths": 1}):
        output, lse = attend(query, key, value, scale=1, **way)
        lab.close(output, [[[[7]]]])
        lab.close(lse, [[[np.float32(score)]]])


@pytest.mark.fault("flashinfer-ai/flashinfer#4451")
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_single_key_with_an_extreme_score(attend, lab, sign) -> None:
    """A row whose only score lay below the kernel's sentinel of -5e4 came back as an empty one."""
    query, key = np.full((1, 1, 1, 64), 64, np.float32), np.full((1, 1, 1, 64), sign * 128, np.float32)
    output, lse = attend(query, key, np.ones((1, 1, 1, 1), np.float32))
    lab.close(output, [[[[1]]]])
    lab.close(lse, [[[sign * 65536]]])
