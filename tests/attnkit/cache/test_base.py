"""The stack: counters, truncate, drop, reset, reorder, and random use against plain lists (C1, C5-C7)."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()
STEPS = ["append"] * 12 + ["truncate"] * 3 + ["reorder"] * 2 + ["poison"] * 2 + ["reset"]


def close(found, expected, atol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def fill(cache, tokens):
    """Give the cache with 5, 3 and 4 tokens in both layers, and what was appended."""
    appended = []
    for layer in cache:
        key, value = tokens(5)
        layer.append(key, value, lengths=[5, 3, 4])
        appended.append((key, value))
    return cache, appended


@pytest.fixture
def filled(cache, tokens):
    return fill(cache, tokens)


# Layers and counters


def test_layers(cache) -> None:
    assert len(cache) == 2
    assert list(cache) == [cache[0], cache[1]] == [cache[-2], cache[-1]]
    for wrong in (2, -3, 10):
        with pytest.raises(IndexError, match=rf"layer must lie in 0\.\.1, got {wrong}"):
            cache[wrong]


def test_the_stack_reports_the_minimum_over_its_layers(cache, tokens) -> None:
    cache[0].append(*tokens(5), lengths=[5, 1, 2])
    assert cache.next_position.tolist() == cache.stored.tolist() == cache.seen.tolist() == [0, 0, 0]
    cache[1].append(*tokens(3), lengths=[3, 3, 0])
    assert cache.next_position.tolist() == cache.stored.tolist() == cache.seen.tolist() == [3, 1, 0]
    assert cache[0].next_position.tolist() == [5, 1, 2]
    assert cache[1].stored.tolist() == [3, 3, 0]


def test_counters_are_host_integers(filled) -> None:
    cache, _ = filled
    for counter in (cache.next_position, cache.stored, cache.seen, cache.capacity, cache[0].stored):
        assert type(counter) is np.ndarray
        assert counter.dtype == np.int64
        assert counter.shape == (3,)


# Truncate and drop


@pytest.mark.parametrize(
    ("operation", "argument", "left"),
    [
        ("truncate", 3, [3, 3, 3]),
        ("truncate", 0, [0, 0, 0]),
        ("truncate", [5, 3, 4], [5, 3, 4]),
        ("truncate", [1, 3, 0], [1, 3, 0]),
        ("truncate", np.array([4, 0, 4], np.int32), [4, 0, 4]),
        ("drop", 0, [5, 3, 4]),
        ("drop", 1, [4, 2, 3]),
        ("drop", 3, [2, 0, 1]),
        ("drop", [5, 0, 2], [0, 3, 2]),
        ("drop", (0, 3, 4), [5, 0, 0]),
    ],
)
def test_truncate_keeps_and_drop_drops(filled, shelf, tokens, queries, operation, argument, left) -> None:
    cache, appended = filled
    lists = shelf.Lists(cache.config)
    for layer, (key, value) in enumerate(appended):
        lists.append(layer, key, value, [5, 3, 4])
    getattr(cache, operation)(argument)
    lists.truncate(left)
    assert cache.next_position.tolist() == cache.stored.tolist() == left
    for again in (False, True):
        for layer in range(2):
            if again:  # truncate, then append = overwrite
                key, value = tokens(2)
                cache[layer].append(key, value)
                lists.append(layer, key, value)
            assert all((a == b).all() for a, b in zip(cache[layer].read(), lists.read(layer), strict=True))
            query = queries(2)
            close(cache[layer].attend(query, mask=CAUSAL), lists.attend(layer, query))


def test_what_was_cut_is_gone_for_good(filled, shelf) -> None:
    cache, _ = filled
    cache.truncate([2, 3, 0])
    before = shelf.observe(cache)
    shelf.poison(cache)
    assert shelf.observe(cache) == before


def test_truncate_forgets_the_ragged_append(filled, queries) -> None:
    cache, _ = filled
    query = queries(5)
    assert (cache[0].attend(query, mask=CAUSAL)[1, :, 3:] == 0).all()  # padding of the append
    cache.truncate([4, 3, 2])
    assert (cache[0].attend(query, mask=CAUSAL)[1, :, 3:] != 0).all()


def test_truncate_repairs_a_stack_left_uneven(filled, shelf, tokens) -> None:
    cache, _ = filled
    before = [layer.read() for layer in cache]
    cache[0].append(*tokens(3))  # and the forward pass fails here
    assert cache[0].stored.tolist() == [8, 6, 7]
    assert cache.stored.tolist() == [5, 3, 4]
    with pytest.raises(
        ak.ShapeError, match=r"length must lie in 0\.\.next_position, which is \[5, 3, 4\], got \[8, 6, 7\]"
    ):
        cache.truncate([8, 6, 7])
    cache.truncate(cache.stored)
    for layer, (key, value) in zip(cache, before, strict=True):
        assert layer.stored.tolist() == [5, 3, 4]
        assert (layer.read()[0] == key).all()
        assert (layer.read()[1] == value).all()


def test_drop_counts_from_the_next_position_of_the_stack(filled, tokens) -> None:
    cache, _ = filled
    cache[0].append(*tokens(3))
    cache.drop(1)
    assert [layer.stored.tolist() for layer in cache] == [[4, 2, 3]] * 2


@pytest.mark.parametrize(
    ("operation", "argument", "error", "words"),
    [
        ("truncate", 4, ak.ShapeError, r"length must lie in 0\.\.next_position, which is \[5, 3, 4\], got \[4, 4, 4\]"),
        ("truncate", -1, ak.ShapeError, "length must lie in"),
        ("truncate", [5, 3, 5], ak.ShapeError, "length must lie in"),
        ("truncate", [5, 3], ak.ShapeError, r"length must be an integer or \[B\] = \[3\]"),
        ("truncate", 1.0, ak.DTypeError, "length must be an integer"),
        ("truncate", True, ak.DTypeError, "length must be an integer"),
        ("truncate", None, ak.DTypeError, "length must be an integer"),
        ("drop", 4, ak.ShapeError, r"count must lie in 0\.\.next_position, which is \[5, 3, 4\], got \[4, 4, 4\]"),
        ("drop", -1, ak.ShapeError, "count must lie in"),
        ("drop", [0, 0, 5], ak.ShapeError, "count must lie in"),
        ("drop", [0.0, 0.0, 0.0], ak.DTypeError, "count must be an integer"),
        ("drop", [[0, 0, 0]], ak.ShapeError, "count must be an integer"),
        ("reorder", [0, 1, 3], ak.ShapeError, "indices must"),
        ("reorder", [0, 1, -1], ak.ShapeError, "indices must"),
        ("reorder", [0, 1], ak.ShapeError, r"indices must be .*\[3\]"),
        ("reorder", 1, ak.ShapeError, r"indices must be integers \[n\], each in 0\.\.B - 1 with B = 3, got 1"),
        ("reorder", [[0, 1, 2]], ak.ShapeError, "indices must"),
        ("reorder", [0.0, 1.0, 2.0], ak.DTypeError, "indices must"),
        ("reorder", [True, False, True], ak.DTypeError, "indices must"),
    ],
)
def test_a_request_that_does_not_fit_changes_nothing(
    plain_cache, shelf, tokens, operation, argument, error, words
) -> None:
    cache, _ = fill(plain_cache, tokens)
    before = shelf.observe(cache, rows=5)
    with pytest.raises(error, match=words):
        getattr(cache, operation)(argument)
    assert shelf.observe(cache, rows=5) == before


@pytest.mark.parametrize("operation", ["truncate", "drop", "reorder"])
def test_arguments_are_left_alone_and_not_kept(filled, shelf, operation) -> None:
    cache, _ = filled
    argument = np.array([1, 2, 0])
    argument.flags.writeable = False
    getattr(cache, operation)(argument)
    before = shelf.observe(cache)
    argument.flags.writeable = True
    argument[:] = 0
    assert shelf.observe(cache) == before


@pytest.mark.parametrize(
    ("operation", "argument"), [("truncate", 0), ("drop", [0, 0, 0]), ("reorder", [2, 0, 0]), ("reset", None)]
)
def test_an_empty_cache_stays_empty(cache, shelf, operation, argument) -> None:
    before = shelf.observe(cache)
    getattr(cache, operation)(*[argument] if argument is not None else [])
    assert shelf.observe(cache) == before


# Reset


def test_reset_is_an_empty_cache(filled, shelf, tokens) -> None:
    cache, _ = filled
    fresh = ak.make_cache(cache.config, backend=cache.choice)
    cache.reset()
    assert shelf.observe(cache) == shelf.observe(fresh)
    assert cache.nbytes == fresh.nbytes
    key, value = tokens(2)
    cache[0].append(key, value)
    assert (cache[0].read()[0] == key).all()


# Reorder


@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 0, 1], [1, 1, 1], [0, 0, 2], np.array([2, 1, 0], np.uint8)])
def test_reorder_permutes_and_duplicates(filled, shelf, queries, indices) -> None:
    cache, appended = filled
    lists = shelf.Lists(cache.config)
    for layer, (key, value) in enumerate(appended):
        lists.append(layer, key, value, [5, 3, 4])
    cache.reorder(indices)
    lists.reorder(indices)
    for layer in range(2):
        assert cache[layer].stored.tolist() == lists.stored(layer)
        assert all((a == b).all() for a, b in zip(cache[layer].read(), lists.read(layer), strict=True))
        query = queries(2)
        close(cache[layer].attend(query, mask=CAUSAL), lists.attend(layer, query))


def test_copies_may_diverge_at_once(filled, shelf, tokens) -> None:
    cache, _ = filled
    cache.reorder([0, 0, 0])
    before = cache[0].read()
    key, value = tokens(1)
    cache[0].append(key, value)
    found = cache[0].read()
    assert (found[0][:, :, :5] == before[0]).all()
    assert (found[0][:, :, 5:] == key).all()
    assert len({sequence.tobytes() for sequence in found[0]}) == 3


def test_query_lengths_move_along_with_their_sequences(filled, queries) -> None:
    cache, _ = filled  # by a ragged append of five tokens
    query = queries(5)
    before = cache[0].attend(query)
    cache.reorder([0, 1, 2])
    np.testing.assert_array_equal(cache[0].attend(query), before)
    cache.reorder([2, 2, 0])
    np.testing.assert_array_equal(cache[0].attend(query[[2, 2, 0]]), before[[2, 2, 0]])


def test_an_uneven_stack_is_reordered_layer_by_layer(filled, tokens) -> None:
    cache, _ = filled
    cache[1].append(*tokens(2), lengths=[2, 0, 1])
    cache.reorder([2, 0, 1])
    assert [layer.stored.tolist() for layer in cache] == [[4, 5, 3], [5, 7, 3]]


def test_reordering_keeps_memory_and_capacity(filled) -> None:
    cache, _ = filled
    before = cache.nbytes, cache.capacity.tolist()
    cache.reorder([2, 2, 0])
    assert (cache.nbytes, cache.capacity.tolist()) == before


# Random use


@pytest.mark.parametrize(("seed", "dtype"), [(0, "float64"), (1, "float64"), (2, "float64"), (3, "float16")])
def test_random_use_is_that_of_plain_lists(cache, shelf, seed, dtype) -> None:
    cache = ak.make_cache(cache.config.model_copy(update={"dtype": dtype}), backend=cache.choice)
    rng, lists = np.random.default_rng(seed), shelf.Lists(cache.config)
    ragged = {}

    def append(layer):
        room = 9 - max(lists.stored(layer))
        count = int(rng.integers(0, min(4, room) + 1))
        key, value = rng.standard_normal((3, 2, count, 4)), rng.standard_normal((3, 2, count, 3))
        lengths = rng.integers(0, count + 1, 3).tolist() if rng.random() < 0.5 else None
        cache[layer].append(key, value, lengths=lengths)
        lists.append(layer, key, value, lengths)
        if count:
            ragged[layer] = (count, lengths) if lengths else None

    def truncate():
        kept = [int(rng.integers(0, min(pair) + 1)) for pair in zip(lists.stored(0), lists.stored(1), strict=True)]
        if rng.random() < 0.5:
            cache.truncate(kept)
        else:
            cache.drop(np.minimum(lists.stored(0), lists.stored(1)) - kept)
        lists.truncate(kept)
        ragged.clear()

    def reorder():
        indices = rng.integers(0, 3, 3)
        cache.reorder(indices)
        lists.reorder(indices)
        ragged.update({layer: (pair[0], [pair[1][i] for i in indices]) for layer, pair in ragged.items() if pair})

    def reset():
        cache.reset()
        lists.truncate([0, 0, 0])
        ragged.clear()

    def check(layer):
        assert cache[layer].stored.tolist() == cache[layer].next_position.tolist() == lists.stored(layer)
        for found, expected in zip(cache[layer].read(), lists.read(layer), strict=True):
            assert found.tobytes() == expected.tobytes()
        query = rng.standard_normal((3, shelf.heads, int(rng.integers(1, 4)), 4))
        count, lengths = ragged.get(layer) or (None, None)
        expected = lists.attend(layer, query, lengths if count == query.shape[2] else None)
        close(cache[layer].attend(query, mask=CAUSAL), expected)

    for _ in range(25):
        step = rng.choice(STEPS)
        if step == "append":
            for layer in rng.permutation(2)[: rng.integers(1, 3)]:  # now and then a forward pass fails half-way
                append(layer)
        elif step == "poison":
            shelf.poison(cache)
        else:
            {"truncate": truncate, "reorder": reorder, "reset": reset}[step]()
        for layer in range(2):
            check(layer)
        assert cache.stored.tolist() == np.minimum(lists.stored(0), lists.stored(1)).tolist()
        longest = max(*lists.stored(0), *lists.stored(1))
        assert (cache.capacity >= longest).all()


def test_a_cache_that_is_let_go_is_gone_at_once() -> None:
    config = ak.KVCacheConfig(num_layers=2, batch_size=1, num_kv_heads=1, head_dim=2)
    cache = ak.make_cache(config, backend="numpy")
    layer, gone = cache[0], weakref.ref(cache)
    gc.disable()
    try:
        del cache
        assert gone() is not None
        del layer
        assert gone() is None
    finally:
        gc.enable()
