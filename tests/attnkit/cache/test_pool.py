"""Pools: pages told in advance, given and taken back, kept for later prompts, and shared by caches (C8, C10)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import attnkit as ak

SIZE = 2


@pytest.fixture
def config(shelf):
    def config(**changes):
        return shelf.config(**{"layout": "paged", "page_size": SIZE, "batch_size": 1, **changes})

    return config


def tokens(batch, count, value=1.0):
    return [np.full((batch, 2, count, size), value) for size in (4, 3)]


def fill(cache, count, value=1.0):
    for layer in cache:
        layer.append(*tokens(cache.batch_size, count, value))
    return cache


# How many


@pytest.mark.parametrize(
    ("fields", "pages"),
    [
        ({"num_pages": 7}, 7),
        ({"num_pages": 7, "max_length": 100}, 7),
        ({"max_length": 5, "batch_size": 3}, 9),
        ({"max_length": 4, "batch_size": 3}, 6),
        ({"max_length": 4, "batch_size": 0}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_pages_from_the_start(config, backend, fields, pages) -> None:
    pool = ak.PagePool(config(**fields), backend=backend)
    assert (pool.free, pool.used, pool.used_bytes) == (pages, 0, 0)
    assert pool.nbytes == pages * SIZE * pool.config.bytes_per_token
    assert pool.grows == (not fields)
    pool.check()


def test_a_growing_pool_has_what_was_told(config, backend) -> None:
    fields = config()
    cache = ak.make_cache(fields, backend=backend)
    for length in range(1, 70):
        fill(cache, 1)
        assert cache.pool.used == -(-length // SIZE)
        assert cache.pool.used + cache.pool.free == fields.pool_pages(cache.pool.used)
        assert cache.nbytes == cache.pool.nbytes == fields.bytes_for(length)
    cache.release(0)
    assert cache.pool.used == 0
    assert cache.pool.nbytes == fields.bytes_for(69)  # it does not shrink


def test_growing_moves_no_token(config, backend, draw) -> None:
    cache = ak.make_cache(config(batch_size=2), backend=backend)
    texts = [np.zeros((2, 2, 0, size)) for size in (4, 3)]
    for _ in range(40):
        new = [draw(2, 2, 1, size) for size in (4, 3)]
        for layer in cache:
            layer.append(*new)
        texts = [np.concatenate(pair, axis=2) for pair in zip(texts, new, strict=True)]
        for layer in cache:
            assert all(map(np.array_equal, layer.read(), texts))
    cache.check_invariants()


# Where pages lie in a pool that grows


def runs(row):
    return 1 + int((np.diff(row) != 1).sum())


@pytest.mark.parametrize("sequences", [1, 2, 3, 7])
def test_sequences_that_grow_by_turns_lie_in_a_row(config, backend, sequences) -> None:
    cache = ak.make_cache(config(batch_size=sequences), backend=backend)
    for _ in range(60):
        fill(cache, 1)
        assert [runs(row) for row in cache.rows] == [1] * sequences
    cache.check_invariants()


def test_a_fork_and_its_own_tail_are_two_runs(config, backend) -> None:
    cache = fill(ak.make_cache(config(), backend=backend), 12)
    for _ in range(3):
        cache.fork(0)
    fill(cache, 40)
    shared = {row[:6] for row in cache.rows}
    assert len(shared) == 1
    assert all(runs(row) <= 2 for row in cache.rows)
    cache.check_invariants()


def test_a_sequence_that_grows_alone_lies_in_a_row_after_each_growth(config, backend) -> None:
    cache = fill(ak.make_cache(config(batch_size=3), backend=backend), 6)
    for _ in range(100):
        before = cache.pages[0]
        for layer in cache:
            layer.append(*tokens(3, 1), lengths=[0, 1, 0])
        if cache.pages[0] is not before:
            assert [runs(row) for row in cache.rows] == [1, 1, 1]


def test_a_snapshot_is_what_it_was_before_the_pool_grew(config, backend, draw) -> None:
    cache = ak.make_cache(config(batch_size=2), backend=backend)
    for layer in cache:
        layer.append(*(draw(2, 2, 5, size) for size in (4, 3)))
    held, snapshot = [layer.read() for layer in cache], cache.snapshot()
    fill(cache, 50)
    cache.restore(snapshot)
    for layer, old in zip(cache, held, strict=True):
        assert all(map(np.array_equal, layer.read(), old))
    cache.check_invariants()


@pytest.mark.parametrize("released", [False, True])
def test_a_prompt_is_found_after_the_pool_grew(config, backend, draw, released) -> None:
    cache = ak.make_cache(config(batch_size=2), backend=backend)
    for layer in cache:
        layer.append(*(draw(2, 2, 6, size) for size in (4, 3)))
    held, text = [layer.read() for layer in cache], [1, 2, 3, 4, 5, 6, 7]
    cache.remember(0, text[:6])
    if released:
        cache.release(0)
    fill(cache, 60)
    assert cache.pool.frames.kept == (3 if released else 0)
    new = cache.admit(text)
    for layer, old in zip(cache, held, strict=True):
        assert layer.stored[new] == 6
        for array, before in zip(layer.read(), old, strict=True):
            assert np.array_equal(array[new, :, :6], before[0])
    cache.check_invariants()


def test_other_caches_of_a_pool_keep_their_places(config, backend) -> None:
    pool = ak.PagePool(config(), backend=backend)
    first, second = (ak.make_cache(config(), backend=backend, pool=pool) for _ in range(2))
    for _ in range(40):
        rows = second.rows
        fill(first, 1)
        assert second.rows == rows
        fill(second, 1)
    pool.check()


def test_pages_that_somebody_took_by_number_keep_theirs(config, backend) -> None:
    cache = fill(ak.make_cache(config(), backend=backend), 3)
    own = cache.pool.take(1)
    fill(cache, 40)
    assert cache.pool.frames.holders(own[0]) == 1
    assert own[0] not in cache.rows[0]
    cache.pool.give_back([tuple(own)])
    cache.check_invariants()


@pytest.mark.parametrize("codec", ["native", "int8", "int4"])
def test_used_bytes_count_a_shared_page_once(config, backend, codec) -> None:
    cache = fill(ak.make_cache(config(num_pages=20, codec=codec), backend=backend), 5)
    each = SIZE * cache.config.bytes_per_token
    assert cache.pool.used_bytes == 3 * each
    for _ in range(4):
        cache.fork(0)
    assert cache.pool.used_bytes == 3 * each
    fill(cache, 1)  # five sequences, four of which need a tail of their own
    assert cache.pool.used_bytes == (2 + 5) * each
    cache.select([2])
    assert cache.pool.used_bytes == 3 * each
    cache.reset()
    assert cache.pool.used_bytes == 0


def test_the_last_of_those_that_share_a_page_keeps_it(config, backend, draw) -> None:
    cache = ak.make_cache(config(num_pages=2 + 2), backend=backend)
    first = [draw(1, 2, 3, size) for size in (4, 3)]
    for layer in cache:
        layer.append(*first)
    cache.fork(0)
    cache.fork(0)
    before = cache.rows[0]
    for layer in cache:  # three tails, two of which are new
        layer.append(*(np.full((3, 2, 1, size), np.arange(3).reshape(3, 1, 1, 1), float) for size in (4, 3)))
    assert cache.pool.free == 0
    assert [row[1] == before[1] for row in cache.rows] == [False, False, True]
    for layer in cache:
        for array, old in zip(layer.read(), first, strict=True):
            assert np.array_equal(array[:, :, :3], np.repeat(old, 3, axis=0))
            assert np.array_equal(array[:, 0, 3, 0], np.arange(3))
    cache.check_invariants()


# Exhaustion


def test_a_full_pool_refuses_and_tells_what_to_do(config, backend) -> None:
    cache = fill(ak.make_cache(config(num_pages=3, batch_size=2), backend=backend), 2)
    message = (
        r"2 more pages of 2 tokens are needed, 1 of the pool's 3 are free; release, truncate or offload sequences, or"
        r" make the cache with more num_pages, or with neither num_pages nor max_length to let it grow"
    )
    with pytest.raises(ak.CacheCapacityError, match=message):
        cache[0].append(*tokens(2, 1))
    assert (cache.pool.free, cache.pool.used) == (1, 2)
    assert cache.rows == [(0,), (1,)]
    cache[0].append(*tokens(2, 1), lengths=[0, 1])
    assert cache.pool.free == 0
    cache.check_invariants()


def test_a_refused_append_forgets_no_prompt(config, backend) -> None:
    """Not even that whose page it was about to write to, nor those that it would have evicted."""
    cache = fill(ak.make_cache(config(num_pages=6, batch_size=2), backend=backend), 4)
    cache.remember(0, [1, 2, 3, 4])
    cache.remember(1, [5, 6, 7, 8])
    cache.release(1)
    cache.truncate(3)
    with pytest.raises(ak.CacheCapacityError, match="5 more pages"):
        cache[0].append(*tokens(1, 11))
    assert cache.match_prefix([1, 2, 3, 4]) == cache.match_prefix([5, 6, 7, 8]) == 4
    cache[0].append(*tokens(1, 9))
    assert cache.match_prefix([1, 2, 3, 4]) == 2
    assert cache.match_prefix([5, 6, 7, 8]) == 0
    cache.check_invariants()


@pytest.mark.parametrize("back", ["release", "truncate", "reset", "offload", "select"])
def test_what_is_given_back_can_be_taken(config, backend, back) -> None:
    cache = fill(ak.make_cache(config(num_pages=4, batch_size=2), backend=backend), 4)
    with pytest.raises(ak.CacheCapacityError):
        cache[0].append(*tokens(2, 1), lengths=[1, 0])
    argument = {"release": [1], "truncate": [[4, 1]], "reset": [], "offload": [1], "select": [[0]]}[back]
    getattr(cache, back)(*argument)
    assert cache.pool.free == {"truncate": 1, "reset": 4}.get(back, 2)
    lengths = [1, 0][: cache.batch_size]
    cache[0].append(*tokens(cache.batch_size, 1), lengths=lengths)
    cache.check_invariants()


# Kept for later prompts


def knowing_two_texts(config, backend):
    """Give an empty cache of six pages that remembers two texts of two pages each, the first one first."""
    cache = ak.make_cache(config(num_pages=6, batch_size=0), backend=backend)
    for text in ([1, 2, 3, 4], [5, 6, 7, 8]):
        cache.admit()
        fill(cache, 4, float(text[0]))
        cache.remember(0, text)
        cache.release(0)
    return cache


def test_what_is_known_stays_until_others_need_the_room(config, backend) -> None:
    cache = knowing_two_texts(config, backend)
    assert (cache.pool.used, cache.pool.free) == (0, 6)
    assert cache.match_prefix([1, 2, 3, 4]) == cache.match_prefix([5, 6, 7, 8]) == 4
    cache.admit()
    fill(cache, 4)  # two pages were never used
    assert cache.match_prefix([1, 2, 3, 4]) == cache.match_prefix([5, 6, 7, 8]) == 4
    fill(cache, 2)  # the tail of the text that was left first goes first
    assert cache.match_prefix([1, 2, 3, 4]) == 2
    assert cache.match_prefix([5, 6, 7, 8]) == 4
    fill(cache, 2)
    assert cache.match_prefix([1, 2, 3, 4]) == 0
    assert cache.match_prefix([5, 6, 7, 8]) == 4
    cache.check_invariants()


def test_what_was_used_last_goes_last(config, backend) -> None:
    cache = knowing_two_texts(config, backend)
    cache.admit([1, 2, 3, 4, 9])  # the older one is wanted again
    key, _ = cache[0].read()
    assert (key == 1).all()
    cache.release(0)
    cache.admit()
    fill(cache, 8)
    assert cache.match_prefix([5, 6, 7, 8]) == 0
    assert cache.match_prefix([1, 2, 3, 4]) == 4


def test_what_a_sequence_holds_is_never_evicted(config, backend) -> None:
    cache = fill(ak.make_cache(config(num_pages=4), backend=backend), 4)
    cache.remember(0, [1, 2, 3, 4])
    cache.admit()
    cache[0].append(*tokens(2, 4), lengths=[0, 4])
    with pytest.raises(ak.CacheCapacityError):
        cache[0].append(*tokens(2, 1), lengths=[0, 1])
    assert cache.match_prefix([1, 2, 3, 4]) == 4


# Several caches


def test_caches_of_one_pool_share_room_and_prefixes(config, backend) -> None:
    pool = ak.PagePool(config(num_pages=8), backend=backend)
    first, second = (ak.make_cache(config(num_pages=8), backend=backend, pool=pool) for _ in range(2))
    fill(first, 6, 3.0)
    first.remember(0, [1, 2, 3, 4, 5, 6])
    assert (pool.used, pool.free) == (3, 5)
    assert first.capacity.tolist() == [16]
    assert second.capacity.tolist() == [10]
    assert second.admit([1, 2, 3, 4, 9]) == 1
    assert second.next_position.tolist() == [0, 4]
    assert pool.used == 3
    assert (second[1].read()[0][1] == 3).all()
    second[0].append(*tokens(2, 2, 7.0), lengths=[0, 2])
    assert (first[0].read()[0] == 3).all()
    first.release(0)
    assert pool.used == 3  # the second cache holds two of them, and one more
    with pytest.raises(ak.CacheCapacityError):
        second[0].append(*tokens(2, 11), lengths=[11, 0])
    second[0].append(*tokens(2, 10), lengths=[10, 0])
    assert pool.free == 0
    for cache in (first, second):
        cache.check_invariants()


def test_nbytes_of_caches_are_those_of_their_pool(config, backend) -> None:
    pool = ak.PagePool(config(), backend=backend)
    caches = [ak.make_cache(config(), backend=backend, pool=pool) for _ in range(2)]
    for cache in caches:
        fill(cache, 9)
        assert cache.nbytes == pool.nbytes
    assert pool.used_bytes == 10 * SIZE * pool.config.bytes_per_token


def test_a_cache_may_have_other_sizes_than_its_pool(config, backend) -> None:
    """What a pool gives out does not depend on how many sequences a cache begins with, or may hold."""
    pool = ak.PagePool(config(num_pages=9, batch_size=7), backend=backend)
    cache = ak.make_cache(config(num_pages=3, batch_size=2, max_length=4), backend=backend, pool=pool)
    fill(cache, 4)
    assert pool.used == 4
    with pytest.raises(ak.CacheCapacityError, match="a sequence holds max_length = 4 at most"):
        cache[0].append(*tokens(2, 1))


@pytest.mark.parametrize("what", ["cache", "snapshot"])
def test_pages_of_what_is_gone_return(config, backend, what) -> None:
    pool = ak.PagePool(config(num_pages=6), backend=backend)
    cache = fill(ak.make_cache(config(), backend=backend, pool=pool), 4)
    other = ak.make_cache(config(), backend=backend, pool=pool)
    snapshot = cache.snapshot()
    fill(cache, 2)
    assert pool.used == 3
    if what == "snapshot":
        cache.reset()
        assert pool.used == 2
        del snapshot
        assert pool.used == 0
    else:
        del cache
        assert pool.used == 2
        assert snapshot is not None
        fill(other, 8)
        assert pool.free == 0
    pool.check()


def test_pages_of_a_cache_that_is_gone_are_found_when_they_are_needed(config, backend) -> None:
    pool = ak.PagePool(config(num_pages=4), backend=backend)
    gc.disable()
    try:
        fill(ak.make_cache(config(), backend=backend, pool=pool), 8)
        cache = ak.make_cache(config(), backend=backend, pool=pool)
        fill(cache, 8)
    finally:
        gc.enable()
    assert pool.used == 4
    pool.check()


def test_known_prefixes_outlive_their_cache(config, backend) -> None:
    pool = ak.PagePool(config(num_pages=6), backend=backend)
    cache = fill(ak.make_cache(config(), backend=backend, pool=pool), 4, 5.0)
    cache.remember(0, [1, 2, 3, 4])
    del cache
    other = ak.make_cache(config(batch_size=0), backend=backend, pool=pool)
    assert pool.used == 0
    assert other.match_prefix([1, 2, 3, 4]) == 4
    other.admit([1, 2, 3, 4, 5])
    assert (other[1].read()[1] == 5).all()


# Refusals


def test_a_pool_is_of_a_paged_configuration(shelf, backend) -> None:
    with pytest.raises(ak.ShapeError, match="config must be of layout 'paged', got 'ring'"):
        ak.PagePool(shelf.config(layout="ring", window=3), backend=backend)
    with pytest.raises(ak.DTypeError, match="config must be a KVCacheConfig, got dict"):
        ak.PagePool({"layout": "paged"}, backend=backend)


def test_what_a_backend_does_not_store_is_refused(nobody, kit, config) -> None:
    backend = kit.backend(
        "poor", capabilities=lambda self: ak.Capabilities(dtypes=frozenset({"float64"}), layouts=frozenset({"ring"}))
    )
    with pytest.raises(ak.UnsupportedError, match="poor"):
        ak.PagePool(config(), backend=backend)


def test_check_finds_a_page_that_nobody_holds(config, backend) -> None:
    cache = fill(ak.make_cache(config(num_pages=4), backend=backend), 4)
    cache.pool.frames.share([0])
    with pytest.raises(RuntimeError, match="page 0 counts 2 holders and has 1"):
        cache.check_invariants()
