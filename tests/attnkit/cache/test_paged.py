"""Pages: where they end, when they are copied, and which ones a prompt finds (C8).

A token is a number: all its keys and values are it, so that what is held can be read off.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


def tokens(rows):
    """Give keys ``[B, 2, T, 4]`` and values ``[B, 2, T, 3]`` of numbers ``[B, T]``."""
    numbers = np.asarray(rows, np.float64)[:, None, :, None]
    return [np.broadcast_to(numbers, (len(numbers), 2, numbers.shape[2], size)).copy() for size in (4, 3)]


def held(layer, sequence=0):
    """Give the numbers that a layer holds of a sequence."""
    key, value = layer.read()
    count = layer.stored[sequence]
    assert (value[sequence, :, :count] == key[sequence, :, :count, :1]).all()
    return key[sequence, 0, :count, 0].tolist()


@pytest.fixture
def make(shelf, backend):
    def make(*texts, **changes):
        """Give a cache that holds some texts in both layers."""
        config = shelf.config(**{"layout": "paged", "page_size": 4, "batch_size": len(texts) or 1, **changes})
        cache = ak.make_cache(config, backend=backend)
        return put(cache, *texts) if texts else cache

    return make


def put(cache, *texts, layers=(0, 1)):
    """Append a text to each sequence; texts may be of different lengths."""
    longest, lengths = max(map(len, texts)), [len(text) for text in texts]
    rows = [[*text, *[np.nan] * (longest - len(text))] for text in texts]
    for layer in layers:
        cache[layer].append(*tokens(rows), lengths=lengths)
    return cache


def texts_of(cache, layer=0):
    return [held(cache[layer], sequence) for sequence in range(cache.batch_size)]


# Boundaries


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_a_sequence_has_the_pages_that_it_needs(make, size) -> None:
    cache, text = make(page_size=size), []
    for count in [1, 1, size, size - 1, 1, 2 * size + 1, 0, size]:
        new = list(range(len(text), len(text) + count))
        put(cache, new)
        text += new
        assert len(cache.rows[0]) == -(-len(text) // size)
        assert texts_of(cache) == texts_of(cache, 1) == [text]
    for kept in range(len(text) - 1, -1, -1):
        cache.truncate(kept)
        assert len(cache.rows[0]) == -(-kept // size)
        assert texts_of(cache) == [text[:kept]]
        cache.check_invariants()
    assert cache.pool.used == 0


def test_the_first_layer_takes_pages_for_all(make) -> None:
    cache = make(num_pages=2)
    put(cache, range(5), layers=[0])
    rows = cache.rows
    put(cache, range(5), layers=[1])
    assert cache.rows == rows
    assert texts_of(cache) == texts_of(cache, 1) == [[0, 1, 2, 3, 4]]


def test_pages_stay_while_any_layer_needs_them(make) -> None:
    cache = make(range(4))
    put(cache, range(4, 9), layers=[0])
    assert len(cache.rows[0]) == 3
    cache.truncate(cache.next_position)  # a forward pass that failed
    assert len(cache.rows[0]) == 1
    assert texts_of(cache) == texts_of(cache, 1) == [[0, 1, 2, 3]]


def test_a_sequence_that_takes_nothing_takes_no_page(make) -> None:
    cache = make([0, 1, 2, 3], [10])
    put(cache, [], [11, 12])
    assert [len(row) for row in cache.rows] == [1, 1]
    put(cache, [4], [])
    assert [len(row) for row in cache.rows] == [2, 1]
    assert texts_of(cache) == [[0, 1, 2, 3, 4], [10, 11, 12]]


@pytest.mark.parametrize("scattered", [False, True])
def test_pages_in_a_row_are_one_span(make, scattered) -> None:
    cache = make([], [])
    for start in range(0, 24, 4):
        put(cache, range(start, start + 4), range(100 + start, 104 + start) if scattered else [])
    if scattered:
        assert sum(len(spans) for spans in cache[0].table().spans) >= 2
    else:
        assert len(cache[0].table().spans[0]) == 1
        assert cache.pages[0].key.view(cache[0].table().row(0)).shape == (1, 2, 24, 4)
    assert texts_of(cache)[0] == list(range(24))


def test_a_longest_length(make) -> None:
    cache = make(range(6), max_length=7, num_pages=30)
    assert cache.capacity.tolist() == [7]
    message = r"append needs room for 8 tokens, a sequence holds max_length = 7 at most; truncate or drop tokens"
    with pytest.raises(ak.CacheCapacityError, match=message):
        put(cache, [6, 7])
    put(cache, [6])
    assert texts_of(cache) == [list(range(7))]
    cache.fork(0)
    with pytest.raises(ak.CacheCapacityError, match=message):
        put(cache, [], [7])


# Capacity


def test_capacity_is_what_one_sequence_may_come_to_hold(make) -> None:
    """To the token: with pages that are shared, and must be copied, and without."""
    for length in range(9):
        for forks in range(3):
            cache = make(range(length), num_pages=5)
            for _ in range(forks):
                cache.fork(0)
            capacity = cache.capacity.tolist()
            assert len(set(capacity)) == 1
            for sequence in range(forks + 1):
                new = [[] for _ in range(forks + 1)]
                new[sequence] = [50] * (capacity[sequence] - length + 1)
                with pytest.raises(ak.CacheCapacityError):
                    put(cache, *new)
            new[sequence].pop()
            put(cache, *new)
            assert cache.next_position.tolist()[sequence] == capacity[sequence]


def test_capacity_without_room_for_a_copy_is_what_is_held(make) -> None:
    cache = make(range(7), num_pages=2)
    cache.fork(0)
    assert cache.pool.free == 0
    assert cache.capacity.tolist() == [7, 7]
    with pytest.raises(ak.CacheCapacityError, match="1 more pages"):
        put(cache, [7], [])
    cache.release(1)
    assert cache.capacity.tolist() == [8]
    put(cache, [7])


def test_capacity_of_a_growing_pool_is_what_is_there(make) -> None:
    cache = make(range(9))
    assert cache.capacity[0] == cache.pool.free * 4 + 12
    put(cache, range(cache.capacity[0] - 8))
    assert cache.next_position[0] <= cache.capacity[0]


# Copies on writing


@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_writers_never_meet(make, shelf, length, order) -> None:
    text = list(range(length))
    cache = make(text)
    assert (cache.fork(0), cache.fork(1)) == (1, 2)
    assert cache.pool.used == -(-length // 4)
    expected = [list(text) for _ in range(3)]
    for writer in order:
        new = [[100 * (writer + 1)] if row == writer else [] for row in range(3)]
        put(cache, *new)
        expected = [old + added for old, added in zip(expected, new, strict=True)]
        assert texts_of(cache) == texts_of(cache, 1) == expected
        cache.check_invariants()
    full, rest = divmod(length, 4)
    assert cache.pool.used == full + 3
    tails = [row[-1] for row in cache.rows]
    assert len(set(tails)) == 3
    assert len({row[:full] for row in cache.rows}) == 1 or not full
    shelf.poison(cache)
    assert texts_of(cache) == texts_of(cache, 1) == expected
    assert rest or full


def test_all_write_at_once(make) -> None:
    cache = make(range(6))
    cache.repeat(3)
    put(cache, [7, 8, 9], [17], [27, 28])
    beginning = list(range(6))
    assert texts_of(cache) == texts_of(cache, 1) == [beginning + more for more in ([7, 8, 9], [17], [27, 28])]
    assert cache.pool.used == 1 + 3 + 1
    cache.check_invariants()


@pytest.mark.parametrize("kept", range(9))
def test_writing_after_a_cut_leaves_the_other_alone(make, kept) -> None:
    cache = make(range(8))
    cache.fork(0)
    cache.truncate([kept, 8])
    put(cache, [50, 51], [])
    assert texts_of(cache) == texts_of(cache, 1) == [[*range(kept), 50, 51], list(range(8))]
    cache.check_invariants()


def test_who_is_left_alone_writes_where_it_is(make) -> None:
    cache = make(range(6))
    cache.fork(0)
    rows = cache.rows
    cache.release(0)
    put(cache, [6])
    assert cache.rows == rows[1:]


def test_a_layer_that_is_behind_takes_its_tokens_along(make) -> None:
    cache = make(range(3))
    put(cache, [3, 4, 5], layers=[0])
    cache.fork(0)
    put(cache, [13], [23, 24], layers=[1])
    assert texts_of(cache) == [[0, 1, 2, 3, 4, 5]] * 2
    assert texts_of(cache, 1) == [[0, 1, 2, 13], [0, 1, 2, 23, 24]]
    cache.check_invariants()


def test_a_snapshot_is_a_holder_too(make) -> None:
    cache = make(range(6))
    snapshot = cache.snapshot()
    assert cache.pool.used == 2
    put(cache, [6])
    assert cache.pool.used == 3  # the tail as it was, and as it is
    cache.truncate(1)
    put(cache, [9, 9, 9, 9])
    cache.restore(snapshot)
    assert texts_of(cache) == texts_of(cache, 1) == [list(range(6))]
    assert cache.pool.used == 2
    put(cache, [7])
    cache.restore(snapshot)
    assert texts_of(cache) == [list(range(6))]
    del snapshot
    assert cache.pool.used == 2


def test_a_fork_copies_nothing_and_attends_the_same(make, draw) -> None:
    cache = make(draw(1, 9)[0])
    before, used = [plane.tobytes() for plane in cache.pages[0].planes], cache.pool.used_bytes
    query = draw(1, 4, 2, 4)
    alone = cache[0].attend(query, mask=CAUSAL)
    cache.fork(0)
    assert [plane.tobytes() for plane in cache.pages[0].planes] == before
    assert cache.pool.used_bytes == used
    both = cache[0].attend(np.concatenate([query, query]), mask=CAUSAL)
    assert (both == alone).all()


# Prefixes


def known(cache, sequence, text):
    """Remember a text under its own numbers as token ids."""
    return cache.remember(sequence, [int(number) for number in text])


def test_a_prompt_begins_with_whole_pages_and_never_with_all(make) -> None:
    cache = make(range(10))
    assert known(cache, 0, range(10)) == 8
    for length, matched, begun in (
        (10, 8, 8),
        (9, 8, 8),
        (8, 8, 4),
        (7, 4, 4),
        (5, 4, 4),
        (4, 4, 0),
        (3, 0, 0),
        (0, 0, 0),
    ):
        prompt = list(range(length))
        assert cache.match_prefix(prompt) == matched
        number = cache.admit(prompt)
        assert cache.next_position[number] == begun
        assert held(cache[0], number) == held(cache[1], number) == prompt[:begun]
        assert cache.rows[number] == cache.rows[0][: begun // 4]
    assert cache.pool.used == 3
    cache.check_invariants()


def test_another_token_ends_the_match(make) -> None:
    cache = make(range(12))
    known(cache, 0, range(12))
    for other in range(12):
        prompt = [number if number != other else 99 for number in range(12)]
        assert cache.match_prefix(prompt) == other // 4 * 4
    assert cache.match_prefix([4, 5, 6, 7]) == 0  # not at its beginning


def test_sequences_that_begin_alike_write_apart(make) -> None:
    cache = make(range(8))
    known(cache, 0, range(8))
    cache.admit([*range(8), 20])
    cache.admit([*range(8), 30])
    put(cache, [], [20, 21], [30])
    assert texts_of(cache) == texts_of(cache, 1) == [[*range(8)], [*range(8), 20, 21], [*range(8), 30]]
    assert cache.pool.used == 4
    known(cache, 1, [*range(8), 20, 21])
    put(cache, [], [22, 23], [])
    assert known(cache, 1, [*range(8), 20, 21, 22, 23]) == 12
    assert cache.match_prefix([*range(8), 20, 21, 22, 23, 24]) == 12
    assert cache.match_prefix([*range(8), 30, 31, 32, 33]) == 8


@pytest.mark.parametrize("kept", range(8))
def test_what_is_written_over_is_found_no_more(make, kept) -> None:
    cache = make(range(8))
    known(cache, 0, range(8))
    cache.truncate(kept)
    assert cache.match_prefix(range(8)) == 8  # nothing was written yet
    put(cache, [50] * 5)
    assert cache.match_prefix(range(8)) == kept // 4 * 4
    text = [*range(kept), *[50] * 5]
    assert known(cache, 0, text) == len(text) // 4 * 4
    cache.admit([*text, 9])
    assert held(cache[1], 1) == text[: len(text) // 4 * 4]
    cache.check_invariants()


def test_a_layer_that_is_written_over_counts(make) -> None:
    cache = make(range(4))
    known(cache, 0, range(4))
    cache.truncate(3)
    put(cache, [9], layers=[1])
    assert cache.match_prefix(range(4)) == 0


def test_what_others_hold_is_still_found(make) -> None:
    """The page that a fork goes on in is a copy; the one that was told stays as it is."""
    cache = make(range(8))
    known(cache, 0, range(8))
    cache.fork(0)
    cache.truncate([6, 8])
    put(cache, [60], [])
    assert cache.match_prefix(range(8)) == 8
    cache.admit([*range(8), 9])
    assert texts_of(cache) == [[*range(6), 60], [*range(8)], [*range(8)]]


def test_only_what_every_layer_has_can_be_told(make) -> None:
    cache = make(range(3))
    put(cache, range(3, 9), layers=[0])
    with pytest.raises(ak.ShapeError, match="tokens must be at most the 3 that sequence 0 holds, got 4"):
        cache.remember(0, [0, 1, 2, 3])
    assert cache.remember(0, [0, 1, 2]) == 0


@pytest.mark.parametrize(
    ("sequence", "told", "error"),
    [(1, [0], ak.ShapeError), (-1, [0], ak.ShapeError), ("0", [0], ak.DTypeError), (0, [0.5] * 4, ak.DTypeError)],
    ids=str,
)
def test_what_cannot_be_told(make, sequence, told, error) -> None:
    cache = make(range(6))
    with pytest.raises(error):
        cache.remember(sequence, told)
    assert cache.match_prefix([0, 1, 2, 3]) == 0
    cache.check_invariants()


def test_prompts_of_any_integers(make) -> None:
    cache = make(range(8))
    cache.remember(0, np.arange(8, dtype=np.int32))
    assert cache.match_prefix(tuple(range(8))) == cache.match_prefix(np.arange(8, dtype=np.uint8)) == 8
    with pytest.raises(ak.DTypeError, match="tokens must be integers"):
        cache.admit([0.0] * 9)
    assert cache.batch_size == 1


def test_no_prompt_begins_longer_than_a_sequence_may_be(make, backend) -> None:
    """A cache of shorter sequences may share the pool."""
    cache = make(range(12))
    known(cache, 0, range(12))
    short = ak.make_cache(cache.config.model_copy(update={"max_length": 6}), backend=backend, pool=cache.pool)
    assert short.match_prefix(range(12)) == 4
    short.admit([*range(12), 99])
    assert short.next_position.tolist() == [0, 4]
    assert (short.capacity >= short.next_position).all()
    put(short, [], [4, 5])
    assert texts_of(short)[1] == list(range(6))


def test_the_end_of_a_cache_gives_everything_back(make) -> None:
    cache = make(range(9), range(50, 53))
    known(cache, 0, range(9))
    cache.fork(1)
    cache.admit([*range(9), 1])
    for _ in range(4):
        cache.release(0)
    assert cache.batch_size == 0
    assert cache.pool.used == 0
    assert cache.match_prefix(range(9)) == 8
    cache.check_invariants()
