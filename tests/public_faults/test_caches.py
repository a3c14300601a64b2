"""Caches: ragged lengths, capacity, copies and element types (C1-C4, C6, C7)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference

Array = Any
CAUSAL = ak.Mask.causal()
HALVES = ["float16", "bfloat16"]
FLOATS = [*HALVES, "float32", "float64"]


def tokens(*rows: list[float], dtype: Any = np.float32) -> Array:
    """Give ``[B, 1, T, 1]``, a list of tokens for each sequence."""
    return np.array(rows, dtype)[:, None, :, None]


def make(path: str, **changes: Any) -> ak.KVCache:
    return ak.make_cache(ak.KVCacheConfig(**{"num_kv_heads": 1, "head_dim": 1, **changes}), backend=path)


def read(cache: ak.KVCache, layer: int = 0) -> tuple[Array, Array]:
    """Give what a layer holds as NumPy arrays."""
    key, value = map(cache.backend.to_numpy, cache[layer].read())
    return key, value


def stored_bytes(cache: ak.KVCache) -> list[bytes]:
    """Give the bytes of all pages, those that hold nothing too."""
    return [cache.backend.to_numpy(plane).tobytes() for pages in cache.pages for plane in pages.planes]


def held(cache: ak.KVCache, sequence: int = 0, layer: int = 0) -> list[float]:
    key, value = read(cache, layer)
    np.testing.assert_array_equal(key, value)
    return key[sequence, 0, : cache[layer].stored[sequence], 0].tolist()


@pytest.mark.fault("google-deepmind/gemma#765")
@pytest.mark.parametrize("max_length", [None, 5])
def test_each_sequence_is_written_at_its_own_end(path, max_length) -> None:
    """All sequences were written at the position of the first, once their lengths differed."""
    cache = make(path, batch_size=2, max_length=max_length)
    start = tokens([1, 0, 0, 0], [1, 2, 3, 4])
    cache[0].append(start, start, lengths=[1, 4])
    cache[0].append(tokens([11], [22]), tokens([11], [22]))
    assert (held(cache, 0), held(cache, 1)) == ([1, 11], [1, 2, 3, 4, 22])
    assert cache.next_position.tolist() == [2, 5]


@pytest.mark.fault("jax-ml/jax#23349")
def test_key_lengths_alone(attend, lab) -> None:
    """Key lengths were passed over unless query lengths came with them."""
    query, key, value = (array.repeat(2, axis=0) for array in lab.level(2, 4))
    lengths = {"kv_lengths": np.array([1, 3]), "query_lengths": np.array([2, 1])}
    output = attend(query, key, value, kv_lengths=lengths["kv_lengths"]).output
    lab.close(output[:, 0, 0], [[1, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0]])
    for names, mask in product([(), ("kv_lengths",), ("query_lengths",), tuple(lengths)], (None, CAUSAL)):
        attend.checked(query, key, value, mask=mask, **{name: lengths[name] for name in names})


@pytest.mark.fault("microsoft/onnxruntime#28031")
@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([-1, 1], ak.ShapeError, r"kv_lengths must lie in 0..S = 0..4, got \[-1, 1\]"),
        ([1, 5], ak.ShapeError, r"kv_lengths must lie in 0..S = 0..4, got \[1, 5\]"),
        ([1, 2, 3], ak.ShapeError, r"kv_lengths must be an integer or \[B\] = \[2\], got shape \[3\]"),
        ([1.0, 2.0], ak.DTypeError, r"kv_lengths must be an integer or integers \[B\], got float64"),
    ],
)
def test_lengths_are_checked(attend, lab, lengths, error, message) -> None:
    """Lengths served as sizes of matrices unchecked: negative ones became huge, and memory beyond was read."""
    with pytest.raises(error, match=message):
        attend(*lab.draw(2, 1, 1, 4), kv_lengths=np.array(lengths))


@pytest.mark.fault("Dao-AILab/flash-attention#638")
def test_a_full_cache_is_not_written_to(path) -> None:
    """An append to a full cache wrote past its end, into other people's arrays."""
    cache, token = make(path, batch_size=2, max_length=8), tokens([9], [9])
    seven = tokens(list(range(7)), list(range(7)))
    cache[0].append(seven, seven)
    cache[0].append(token, token)
    before = stored_bytes(cache)
    for more in ({}, {"lengths": [0, 1]}, {"lengths": [1, 0]}):
        with pytest.raises(ak.CacheCapacityError, match=r"room for 9 tokens.*max_length = 8.*truncate or drop"):
            cache[0].append(token, token, **more)
        assert stored_bytes(cache) == before
        assert cache.stored.tolist() == [8, 8]
    cache[0].append(token, token, lengths=0)
    assert held(cache, 1) == [*range(7), 9]


@pytest.mark.fault("ml-explore/mlx-lm#1100")
def test_what_was_read_stays_as_it_was(path) -> None:
    """The cache's offset was updated in place, and whoever had read it before saw the new value."""
    cache, token = make(path, num_layers=2, max_length=8), tokens([5])
    for layer in cache:
        layer.append(token, token)
    owners = (cache, cache[0])
    names = ("next_position", "stored", "capacity")
    numbers = [getattr(owner, name) for owner in owners for name in names]
    arrays, copy = cache[0].read(), cache.backend.to_numpy
    before = [*(array.copy() for array in numbers), *map(copy, arrays)]
    for layer in cache:
        layer.append(token + 1, token + 1)
    cache.truncate(1)
    cache[0].append(token + 2, token + 2)
    cache.reorder([0])
    for array, old in zip((*numbers, *map(copy, arrays)), before, strict=True):
        np.testing.assert_array_equal(array, old)
    for array in (*numbers, *arrays):
        array[...] = 77
    assert held(cache) == [5, 7]
    assert cache.next_position.tolist() == [1]


@pytest.mark.fault("cupy/cupy#6214")
def test_one_array_in_every_role(attend, lab) -> None:
    """A product written over one of its inputs was undefined; here no result shares memory with an argument."""
    array, _, _ = lab.draw(1, 2, 4, 4)
    copy = array.copy()
    output, lse = attend(array, array, array)
    lab.same_bits(array, copy)
    assert not any(np.shares_memory(result, array) for result in (output, lse))
    lab.same_bits(attend(array, array.copy(), array.copy()).output, output)


@pytest.mark.fault("microsoft/onnxruntime#23315")
def test_past_and_present_in_one_buffer(path) -> None:
    """Appending went wrong where the old and the new keys lay in the same buffer."""
    cache = make(path, max_length=8)
    cache[0].append(tokens([1, 2, 3]), tokens([1, 2, 3]))
    cache[0].append(*(plane[None, :, 1:4] for plane in cache.pages[0].planes), lengths=2)
    assert held(cache) == [1, 2, 3, 2, 3]
    cache[0].append(*cache[0].read(), lengths=3)
    assert held(cache) == [1, 2, 3, 2, 3, 1, 2, 3]


@pytest.mark.fault("vllm-project/vllm#54338")
@pytest.mark.parametrize(
    ("stored", "given"), [*product(HALVES, HALVES), ("float32", "bfloat16"), ("float16", "float64")]
)
def test_stored_by_value(path, stored, given) -> None:
    """The bits of bfloat16 keys were copied into a float16 cache: fluent nonsense, no error."""
    token = tokens([0.1621, -3.5], dtype=np.dtype(given))
    for make_own in (np.array, ak.get_backend(path.partition(":")[0]).from_numpy):
        cache = make(path, dtype=stored)
        cache[0].append(make_own(token), make_own(token))
        key, _ = read(cache)
        assert key.dtype == np.dtype(stored)
        np.testing.assert_array_equal(key, token.astype(stored))
        assert abs(float(key[0, 0, 0, 0]) - 0.1621) < 1e-3


@pytest.mark.fault("Lightning-AI/litgpt#57")
@pytest.mark.parametrize(("stored", "given"), [*product(FLOATS, repeat=2)])
def test_a_cache_of_another_type(path, attend, lab, stored, given) -> None:
    """A cache of one precision under keys of another failed with words about an index."""
    query, key, value = lab.draw(1, 2, 2, 3, dtype=np.dtype(given))
    cache = make(path, num_kv_heads=2, head_dim=8, dtype=stored)
    cache[0].append(key, value)
    found = attend.only_if_taken(lambda: cache[0].attend_with_lse(query, mask=CAUSAL))
    assert found.output.dtype == np.dtype(given)
    rounded = [array.astype(stored) for array in (key, value)]
    attend.agree(found, reference.attention(query, *rounded, mask=CAUSAL), query.dtype)
    own = cache.backend.from_numpy(query)
    assert cache[0].attend(own, mask=CAUSAL).dtype == own.dtype


@pytest.mark.fault("huggingface/transformers#30312")
def test_truncate_then_append_overwrites(path) -> None:
    """Cropping built a shorter array, and later writes missed the buffer that others held."""
    cache = make(path, max_length=8)
    cache[0].append(tokens(list(range(6))), tokens(list(range(6))))
    storage = cache.pages[0].planes[0]
    cache.truncate(3)
    cache[0].append(tokens([100, 101]), tokens([100, 101]))
    assert held(cache) == [0, 1, 2, 100, 101]
    assert cache.pages[0].planes[0] is storage


@pytest.mark.fault("waybarrios/vllm-mlx#385")
def test_what_was_cut_is_gone(path, lab) -> None:
    """Trimming lowered a counter only, and the tokens of one user could be read in the answer to another."""
    cache = make(path, max_length=16)
    cache[0].append(tokens(list(range(10))), tokens(list(range(10))))
    cache.truncate(4)
    key, value = read(cache)
    assert key.shape == value.shape == (1, 1, 4, 1)
    before = cache[0].attend(tokens([1]))
    for plane in cache.pages[0].planes:
        plane[:, 4:] = np.nan
    lab.same_bits(cache[0].attend(tokens([1])), before)
    assert held(cache) == [0, 1, 2, 3]


@pytest.mark.fault("huggingface/transformers#46612")
def test_every_cache_can_be_reordered(path) -> None:
    """Beam search knew the cache by one name only; other kinds were never reordered, and beams mixed."""
    cache = make(path, batch_size=3, num_layers=2)
    for layer in cache:
        layer.append(tokens([0], [1], [2]), tokens([0], [1], [2]))
    cache.reorder([1, 0, 0])
    for number, layer in enumerate(cache):
        assert [held(cache, b, number) for b in range(3)] == [[1], [0], [0]]
        layer.append(tokens([7], [8], [9]), tokens([7], [8], [9]))
        assert [held(cache, b, number) for b in range(3)] == [[1, 7], [0, 8], [0, 9]]
