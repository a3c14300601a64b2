"""Caches of every layout and codec: rings, pages, going back, and codes with their scales (C6, C8, C9, C11)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit.codec import Codec

Array = Any
CAUSAL = ak.Mask.causal()
CODECS = ["int8", "int4", "fp8", "int4/2"]


def tokens(*rows: list[float]) -> Array:
    """Give ``[B, 1, T, 1]``, a list of tokens for each sequence."""
    return np.array(rows, np.float32)[:, None, :, None]


def make(path: str, **changes: Any) -> ak.KVCache:
    return ak.make_cache(ak.KVCacheConfig(**{"num_kv_heads": 1, "head_dim": 1, **changes}), backend=path)


def put(cache: ak.KVCache, *rows: list[float], layer: int = 0) -> None:
    """Append tokens whose keys and values are the same number."""
    cache[layer].append(tokens(*rows), tokens(*rows))


def read(cache: ak.KVCache, layer: int = 0) -> tuple[Array, Array]:
    """Give what a layer holds as NumPy arrays."""
    key, value = map(cache.backend.to_numpy, cache[layer].read())
    return key, value


def held(cache: ak.KVCache, sequence: int = 0, layer: int = 0) -> list[float]:
    key, value = read(cache, layer)
    np.testing.assert_array_equal(key, value)
    return key[sequence, 0, : cache[layer].stored[sequence], 0].tolist()


def mean_seen(attend: Any, cache: ak.KVCache, **options: Any) -> Array:
    """Give the mean of the values that one query of each sequence sees, ``[B]``: all scores are 0."""
    query = np.zeros((cache.batch_size, 1, 1, 1), np.float32)
    output = attend.only_if_taken(lambda: cache[0].attend(cache.backend.from_numpy(query), **options))
    return cache.backend.to_numpy(output)[:, 0, 0, 0]


# Rings


@pytest.mark.fault("huggingface/transformers#37574")
def test_a_ring_rolls_when_it_must_and_not_before(path) -> None:
    """A window cache rolled one step too early, when it became full."""
    cache = make(path, layout="ring", window=8, max_append=6)
    put(cache, [10, 11, 12, 13, 14, 15])
    put(cache, [16])
    put(cache, [17])
    assert held(cache) == [10, 11, 12, 13, 14, 15, 16, 17]
    put(cache, [18])
    assert held(cache) == [11, 12, 13, 14, 15, 16, 17, 18]


@pytest.mark.fault("huggingface/transformers#47708")
@pytest.mark.parametrize("prefill", range(1, 9))
def test_a_ring_is_in_order_after_any_prefill(path, prefill) -> None:
    """Where reading started was right for a full ring alone: after a short prefill the tokens came out of order."""
    cache = make(path, layout="ring", window=4, max_append=8)
    text = list(range(prefill))
    put(cache, text)
    assert held(cache) == text  # the chunk, and the three before it that there are not
    for token in range(prefill, prefill + 9):
        put(cache, [token])
        text.append(token)
        assert held(cache) == text[-4:]


@pytest.mark.fault("huggingface/transformers#38156")
def test_what_was_seen_is_not_what_is_stored(path) -> None:
    """The sequence length was taken from a window layer, so that positions stopped at the window."""
    cache = make(path, layout="ring", window=4, num_layers=2)
    for token in range(10):
        for layer in range(2):
            put(cache, [token], layer=layer)
    assert (cache.seen.tolist(), cache.next_position.tolist(), cache.stored.tolist()) == ([10], [10], [4])


@pytest.mark.fault("rajveer43/VeloxQuant-MLX#274")
def test_what_a_ring_gave_up_is_not_attended_to(attend, path) -> None:
    """The length said W while nothing was ever given up, and attention ran over the whole history."""
    cache = make(path, layout="ring", window=4)
    size = cache.nbytes
    for token in range(100):
        put(cache, [token])
    np.testing.assert_allclose(mean_seen(attend, cache), [(96 + 97 + 98 + 99) / 4], rtol=1e-6)
    assert cache.nbytes == size == cache.config.bytes_for(100)


# Going back


@pytest.mark.fault("ml-explore/mlx-lm#1109")
def test_going_back_too_far_is_refused_aloud(attend, path) -> None:
    """Rolling back a cache that could not do so did nothing, and said nothing."""
    cache = make(path, layout="ring", window=4)
    for token in range(10):
        put(cache, [token])
    before = held(cache), cache.next_position.tolist(), mean_seen(attend, cache).tolist()
    with pytest.raises(ak.ShapeError, match=r"the 3 tokens that its next query sees.*snapshot\(\)"):
        cache.drop(2)
    assert (held(cache), cache.next_position.tolist(), mean_seen(attend, cache).tolist()) == before
    cache.drop(1)
    assert held(cache) == [6, 7, 8]


@pytest.mark.fault("lablup/mlxcel#994")
@pytest.mark.parametrize(
    "layout", [{}, {"layout": "ring", "window": 6, "max_append": 5}, {"layout": "paged", "page_size": 2}]
)
def test_draft_and_target_go_back_by_numbers_of_their_own(path, layout) -> None:
    """The cache of the draft was cut by as many tokens as that of the target, which is fed one more a round."""
    target, draft = (make(path, **layout) for _ in range(2))
    text = [1, 2, 3]
    for cache in (target, draft):
        put(cache, text[:-1])
    for accepted, proposals in [(1, [50, 51, 52, 53]), (4, [60, 61, 62, 63]), (0, [70, 71, 72, 73])]:
        put(draft, [text[-1], *proposals[:-1]])  # the last proposal is never fed to the draft
        put(target, [text[-1], *proposals])
        kept = min(accepted, 3)
        draft.drop(3 - kept)
        target.drop(4 - accepted)
        text += [*proposals[:accepted], 90 + accepted]
        if accepted == 4:  # the draft has not seen the proposal that it made last
            put(draft, [proposals[-1]])
        for cache in (target, draft):
            assert cache.next_position.tolist() == [len(text) - 1]
            assert held(cache) == text[:-1][-cache.stored[0] :]


# Pages


@pytest.mark.fault("vllm-project/vllm#7018")
def test_page_zero_belongs_to_one_sequence(attend, path) -> None:
    """Rows without a cached prefix got a table of zeros, and read page 0."""
    cache = make(path, layout="paged", page_size=2, batch_size=3)
    put(cache, [np.nan] * 8, [1] * 8, [5, 6, 7, 8, 5, 6, 7, 8])
    rows = cache.rows
    assert sorted(page for row in rows for page in row) == list(range(12))
    assert 0 in rows[0]  # the page of the poison
    cache.release(0)
    np.testing.assert_allclose(mean_seen(attend, cache), [1, 6.5], rtol=1e-6)
    assert held(cache, 1) == [5, 6, 7, 8, 5, 6, 7, 8]


@pytest.mark.fault("vllm-project/vllm#49449")
def test_a_rewritten_page_is_not_found_under_its_old_text(path) -> None:
    """Pages that were written anew kept the hash of what they had held before."""
    cache = make(path, layout="paged", page_size=2)
    put(cache, [1, 2, 3, 4])
    assert cache.remember(0, [1, 2, 3, 4]) == 4
    cache.truncate(2)
    put(cache, [5, 6])
    assert cache.match_prefix([1, 2, 3, 4]) == 2
    assert cache.match_prefix([1, 2, 5, 6]) == 2  # not told yet
    assert cache.remember(0, [1, 2, 5, 6]) == 4
    row = cache.admit([1, 2, 3, 4, 9])
    assert held(cache, row) == [1, 2]
    row = cache.admit([1, 2, 5, 6, 9])
    assert held(cache, row) == [1, 2, 5, 6]
    cache.check_invariants()


@pytest.mark.fault("Avarok-Cybersecurity/atlas#1193")
@pytest.mark.parametrize("first", ["parent", "child"])
def test_forks_write_into_pages_of_their_own(path, first) -> None:
    """A tail that was not full was shared with a fork, and the two overwrote each other."""
    cache = make(path, layout="paged", page_size=4, num_pages=8)
    put(cache, [0, 1, 2, 3, 4, 5])
    child = cache.fork(0)
    lengths = [[1, 0], [0, 1]] if first == "parent" else [[0, 1], [1, 0]]
    for taken in lengths:
        cache[0].append(tokens([200], [100]), tokens([200], [100]), lengths=taken)
    assert held(cache, 0) == [0, 1, 2, 3, 4, 5, 200]
    assert held(cache, child) == [0, 1, 2, 3, 4, 5, 100]
    assert cache.pool.used == 3
    cache.release(child)
    cache.release(0)
    assert cache.pool.used == 0
    cache.check_invariants()


@pytest.mark.fault("vllm-project/vllm#43810")
@pytest.mark.parametrize("path_free", ["numpy", "torch"])
def test_padding_is_skipped_and_never_wrapped(path_free) -> None:
    """The slot of padding, -1, was the last slot of the last page."""
    backend = ak.get_backend(path_free)
    plane = backend.allocate((1, 20, 1), "float32")
    backend.write(plane, np.array([[19]]), backend.from_numpy(tokens([7])))
    backend.write(plane, np.array([[3, -1, -1]]), backend.from_numpy(tokens([1, 2, 3])))
    backend.write(plane, np.array([[-1], [4], [-1], [-1], [5]]), backend.from_numpy(tokens([8], [9], [8], [8], [9])))
    expected = np.zeros(20)
    expected[[3, 4, 5, 19]] = 1, 9, 9, 7
    assert backend.to_numpy(plane)[0, :, 0].tolist() == expected.tolist()


@pytest.mark.fault("Dao-AILab/flash-attention#1795")
def test_one_length_is_that_of_every_sequence(attend, path) -> None:
    """A length given as one number was spread over the pages instead of the sequences."""
    cache = make(path, layout="paged", page_size=2, batch_size=2, num_pages=7)
    numbers = [[1, 1, 1, 1, 1, 99], [3, 3, 3, 3, 3, 99]]
    for lengths in (5, np.int64(5), np.array(5), [5, 5]):
        cache.reset()
        if np.ndim(lengths) == 0 and isinstance(lengths, np.ndarray):
            with pytest.raises(ak.ShapeError, match=r"lengths must be an integer or \[B\] = \[2\], got shape \[\]"):
                cache[0].append(tokens(*numbers), tokens(*numbers), lengths=lengths)
            continue
        cache[0].append(tokens(*numbers), tokens(*numbers), lengths=lengths)
        assert cache.stored.tolist() == [5, 5]
        np.testing.assert_allclose(mean_seen(attend, cache), [1, 3], rtol=1e-6)
    cache.truncate(3)
    assert cache.stored.tolist() == [3, 3]


# Positions


@pytest.mark.fault("ggml-org/llama.cpp#3825")
@pytest.mark.parametrize("layout", [{}, {"layout": "ring", "window": 20}, {"layout": "paged", "page_size": 3}])
def test_two_steps_back_add_up(path, layout) -> None:
    """Of two shifts in a row the position took both, and the rotation of the key the last alone."""
    config = ak.AttentionConfig(num_heads=1, head_dim=8, mask=CAUSAL, rope=ak.RopeConfig())
    backend = ak.get_backend(path.partition(":")[0])
    weights = [backend.from_numpy(np.eye(8, dtype=np.float32)) for _ in range(4)]
    layer = ak.MultiHeadAttention(config, *weights, backend=path)
    x = np.random.default_rng(0).standard_normal((1, 11, 8), np.float32)
    back, plain = (make(path, head_dim=8, **layout) for _ in range(2))
    for cache, steps in ((back, range(10)), (plain, range(6))):
        for step in steps:
            layer(backend.from_numpy(x[:, step : step + 1]), cache=cache[0])
    back.drop(2)
    back.drop(2)
    found, expected = (layer(backend.from_numpy(x[:, 10:]), cache=cache[0]) for cache in (back, plain))
    assert back.next_position.tolist() == [7]
    np.testing.assert_array_equal(*(backend.to_numpy(array) for array in (found, expected)))
    np.testing.assert_array_equal(read(back)[0], read(plain)[0])


# Codes and scales


@pytest.mark.fault("vllm-project/vllm#41343")
@pytest.mark.parametrize("codec", CODECS)
def test_a_scale_is_measured_and_never_assumed(path, codec) -> None:
    """With a scale of 1 that nobody had set, a format of few bits lost all but one channel."""
    key = np.full((1, 1, 5, 4), 0.01, np.float32) * np.arange(1, 5, dtype=np.float32)
    key[:, :, 2, 1] = 300
    cache = make(path, head_dim=4, codec=codec)
    cache[0].append(key, key)
    error, bound = np.abs(read(cache)[0] - key.astype(np.float64)), Codec(**_fields(codec)).bound(key, "float32")
    assert (error <= bound).all()
    others = [0, 1, 3, 4]
    assert error[:, :, others].max() < 0.0025  # the huge one is a token of its own
    assert (bound[:, :, others] < 0.003).all()


def _fields(codec: str) -> dict[str, Any]:
    kind, _, block = codec.partition("/")
    return {"kind": kind, "block": int(block) if block else None}


@pytest.mark.fault("vllm-project/vllm#25800")
@pytest.mark.parametrize(
    "layout", [{}, {"layout": "ring", "window": 9, "max_append": 9}, {"layout": "paged", "page_size": 2}]
)
@pytest.mark.parametrize("codec", CODECS)
def test_scales_go_where_codes_go(path, layout, codec, tmp_path) -> None:
    """After a sleep the codes were there again, and their scales were not."""
    cache = make(path, head_dim=4, batch_size=2, codec=codec, **layout)
    key = (10.0 ** np.arange(-3, 3)[:, None] * np.arange(1, 5)).astype(np.float32)
    cache[0].append(np.stack([key, -key])[:, None], np.stack([key, key[::-1]])[:, None])
    before = read(cache)
    cache.save(tmp_path / "cache")
    again = ak.load_cache(tmp_path / "cache", backend=path)
    np.testing.assert_array_equal(read(again), before)
    away = cache.offload(0)
    np.testing.assert_array_equal([array[0] for array in read(cache)], [array[1] for array in before])
    cache.resume(away)
    np.testing.assert_array_equal([array[[1, 0]] for array in read(cache)], before)


@pytest.mark.fault("ggml-org/llama.cpp#5652")
@pytest.mark.parametrize(
    "layout", [{}, {"layout": "ring", "window": 9, "max_append": 9}, {"layout": "paged", "page_size": 2}]
)
@pytest.mark.parametrize("codec", CODECS)
def test_codes_are_moved_and_never_calculated_with(path, layout, codec) -> None:
    """Packed codes of four bits were rotated as if they were numbers."""
    cache = make(path, head_dim=4, batch_size=2, codec=codec, **layout)
    key = np.random.default_rng(1).standard_normal((2, 1, 6, 4), np.float32)
    cache[0].append(key, key)
    rows, first = [0, 1], read(cache)
    snapshot = cache.snapshot()
    for operate, source in [
        (lambda: cache.reorder([1, 0]), [1, 0]),
        (lambda: cache.fork(0), [0, 1, 0]),
        (lambda: cache.repeat(2), [0, 0, 1, 1, 2, 2]),
        (lambda: cache.select([5, 0]), [5, 0]),
    ]:
        operate()
        rows = [rows[index] for index in source]
        np.testing.assert_array_equal(read(cache), [array[rows] for array in first])
    cache.truncate(3)
    cache[0].append(key, key)
    np.testing.assert_array_equal(read(cache)[0][:, :, :3], first[0][rows][:, :, :3])
    cache.restore(snapshot)
    np.testing.assert_array_equal(read(cache), first)
