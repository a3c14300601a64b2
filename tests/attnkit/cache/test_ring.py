"""Rings: what they give up and when, how far they can go back, and that windows over them see what they must (C6, C9).

A token is a number: all its keys and values are it, so that what is held can be read off.
"""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit import reference

CAUSAL = ak.Mask.causal()


def tokens(rows):
    """Give keys ``[B, 2, T, 4]`` and values ``[B, 2, T, 3]`` of numbers ``[B, T]``."""
    numbers = np.asarray(rows, np.float64)[:, None, :, None]
    return [np.broadcast_to(numbers, (len(numbers), 2, numbers.shape[2], size)).copy() for size in (4, 3)]


def held(layer, sequence=0):
    """Give the numbers that a layer holds of a sequence."""
    key, value = layer.read()
    count = layer.stored[sequence]
    assert (key[sequence, :, :count, :1] == key[sequence, :, :count]).all()
    assert (value[sequence, :, :count] == key[sequence, :, :count, :1]).all()
    return key[sequence, 0, :count, 0].tolist()


@pytest.fixture
def make(shelf, backend):
    def make(window, max_append=4, pinned=0, **changes):
        fields = {"layout": "ring", "window": window, "max_append": max_append, "pinned": pinned}
        return ak.make_cache(shelf.config(**{"batch_size": 1, "num_layers": 1, **fields, **changes}), backend=backend)

    return make


def grow(cache, *counts):
    """Append tokens numbered by their positions, so many at a time, to every sequence of every layer."""
    for count in counts:
        for layer in cache:
            layer.append(*tokens([range(n, n + count) for n in layer.next_position]))
    return cache


# Giving up


@pytest.mark.parametrize(
    ("window", "max_append", "pinned", "counts", "left"),
    [
        (4, 4, 0, [3], [0, 1, 2]),
        (4, 4, 0, [4], [0, 1, 2, 3]),
        (4, 4, 0, [4, 0], [0, 1, 2, 3]),  # the next append gives up, and only one of some tokens
        (4, 4, 0, [4, 1], [1, 2, 3, 4]),
        (4, 4, 0, [4, 4], [1, 2, 3, 4, 5, 6, 7]),
        (4, 4, 0, [4, 4, 1], [5, 6, 7, 8]),
        (4, 4, 0, [2, 2, 2, 2], [3, 4, 5, 6, 7]),
        (4, 1, 0, [1] * 9, [5, 6, 7, 8]),
        (1, 1, 0, [1] * 5, [4]),
        (1, 3, 0, [3, 2], [3, 4]),
        (1, 3, 0, [3, 3], [3, 4, 5]),
        (2, 9, 0, [9, 9], [8, 9, 10, 11, 12, 13, 14, 15, 16, 17]),
        (3, 4, 2, [4, 4], [0, 1, 2, 3, 4, 5, 6, 7]),
        (3, 4, 2, [4, 4, 1], [0, 1, 6, 7, 8]),
        (3, 4, 2, [1] * 8, [0, 1, 5, 6, 7]),
        (1, 2, 3, [2] * 5, [0, 1, 2, 8, 9]),
        (4, 4, 9, [4, 4, 4, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        (4, 4, 9, [4] * 5, [0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 18, 19]),
    ],
)
def test_what_is_left(make, window, max_append, pinned, counts, left) -> None:
    cache = grow(make(window, max_append, pinned), *counts)
    assert held(cache[0]) == left
    assert cache.next_position.tolist() == [sum(counts)]
    assert cache.stored.tolist() == [len(left)]
    cache.check_invariants()


@pytest.mark.parametrize("pinned", [0, 1, 3])
@pytest.mark.parametrize("max_append", [1, 2, 5])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_it_comes_round_in_every_phase(make, window, max_append, pinned) -> None:
    """Appends of every size begin at every slot of the ring, and write where nothing lies that is held."""
    rng, phases = np.random.default_rng(0), set()
    cache, left = make(window, max_append, pinned), []
    size = cache.config.ring_size
    for step in range(6 * size):
        count = max_append if step % 3 else int(rng.integers(1, max_append + 1))
        start = int(cache.next_position[0])
        phases.add(start % size)
        before = set(cache[0].table().slots.ravel().tolist())
        left = (left[:pinned] + left[pinned:][max(len(left) - pinned - (window - 1), 0) :]) + [
            *range(start, start + count)
        ]
        grow(cache, count)
        slots = cache[0].table().slots[0]
        assert not before & set(slots[-count:].tolist())
        assert held(cache[0]) == left
        assert len(left) <= cache.capacity[0]
    assert phases == set(range(size))


def test_memory_and_capacity_are_those_of_the_window(make) -> None:
    cache = make(5, 3, 2)
    assert cache.capacity.tolist() == [2 + 4 + 3]
    assert cache.config.ring_size == 4 + 2 * 3
    before = cache.nbytes
    assert before == cache.config.bytes_for(10**9) == cache.config.bytes_per_token * (2 + 4 + 6)
    grow(cache, *[3] * 20)
    assert cache.nbytes == before
    assert cache.capacity.tolist() == [9]
    cache.fork(0)
    cache.reset()
    assert cache.capacity.tolist() == [9, 9]
    assert cache.nbytes == 2 * before


def test_more_than_an_append_may_have_is_refused(make, shelf) -> None:
    cache = grow(make(4, 3, batch_size=2), 3, 2)
    before = shelf.stored_bytes(cache), held(cache[0]), cache.next_position.tolist()
    message = r"append needs room for 4 tokens at a time, the ring takes max_append = 3; append them in several calls"
    with pytest.raises(ak.CacheCapacityError, match=message):
        cache[0].append(*tokens([range(4)] * 2))
    with pytest.raises(ak.CacheCapacityError, match=message):
        cache[0].append(*tokens([range(9)] * 2), lengths=[0, 4])
    assert (shelf.stored_bytes(cache), held(cache[0]), cache.next_position.tolist()) == before
    cache[0].append(*tokens([range(9)] * 2), lengths=[3, 0])  # as many as are taken count
    assert held(cache[0]) == [2, 3, 4, 0, 1, 2]


def test_a_sequence_that_takes_nothing_gives_up_nothing(make) -> None:
    cache = grow(make(3, 4, batch_size=3), 4)
    cache[0].append(*tokens([[4, 5], [-1, -1], [4, -1]]), lengths=[2, 0, 1])
    assert [held(cache[0], row) for row in range(3)] == [[2, 3, 4, 5], [0, 1, 2, 3], [2, 3, 4]]
    assert cache.next_position.tolist() == [6, 4, 5]
    cache[0].append(*tokens([[-1], [4], [-1]]), lengths=[0, 1, 0])
    assert [held(cache[0], row) for row in range(3)] == [[2, 3, 4, 5], [2, 3, 4], [2, 3, 4]]
    cache[0].append(*tokens([[-1, -1]] * 3), lengths=0)
    assert cache.stored.tolist() == [4, 3, 3]


# Going back


@pytest.mark.parametrize("operation", ["truncate", "drop"])
@pytest.mark.parametrize("pinned", [0, 2])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_how_far_it_can_go_back_at_every_length(make, shelf, window, pinned, operation) -> None:
    """As far as the next query still finds all that its window shows; and to pinned tokens, as these alone are left."""
    for length in range(13):
        for kept in range(length + 1):
            cache = grow(make(window, 3, pinned), *[3] * (length // 3), *[1] * (length % 3))
            left = held(cache[0])
            evicted = sorted(set(range(length)) - set(left))
            possible = kept <= pinned or not evicted or kept - (window - 1) > evicted[-1]
            argument = kept if operation == "truncate" else length - kept
            if not possible:
                with pytest.raises(ak.ShapeError, match=rf"not to \[{kept}\]; take a snapshot\(\) before"):
                    getattr(cache, operation)(argument)
                assert held(cache[0]) == left
                assert cache.next_position.tolist() == [length]
                continue
            getattr(cache, operation)(argument)
            assert held(cache[0]) == [number for number in left if number < kept]
            assert cache.next_position.tolist() == [kept]
            shelf.poison(cache)
            grow(cache, 1)
            seen = [*range(min(pinned, kept)), *range(max(kept - window + 1, min(pinned, kept)), kept + 1)]
            assert set(seen) <= set(held(cache[0]))
            found = cache[0].attend(np.zeros((1, 4, 1, 4)), mask=CAUSAL & ak.Mask.window(window))
            np.testing.assert_allclose(found, np.mean(seen), rtol=1e-12)


def test_the_error_tells_where_it_can_go(make) -> None:
    cache = grow(make(4, 3, 2, batch_size=2), 3, 3, 3)
    cache[0].append(*tokens([[9, 10], [0, 0]]), lengths=[2, 0])
    assert cache.next_position.tolist() == [11, 9]
    message = r"go back to position \[9, 6\] at the least, or to 2 or less, not to \[8, 6\]"
    with pytest.raises(ak.ShapeError, match="length must leave each sequence the 3 tokens .*" + message):
        cache.truncate([8, 6])
    with pytest.raises(ak.ShapeError, match="count must leave each sequence the 3 tokens .*" + message):
        cache.drop([3, 3])
    cache.truncate([9, 6])
    assert [held(cache[0], row) for row in range(2)] == [[0, 1, 6, 7, 8], [0, 1, 3, 4, 5]]
    cache.truncate([2, 1])
    assert [held(cache[0], row) for row in range(2)] == [[0, 1], [0]]


def test_back_to_the_beginning_is_an_empty_ring(make) -> None:
    cache = grow(make(3, 2), *[2] * 7)
    cache.truncate(0)
    assert held(cache[0]) == []
    grow(cache, 2, 1)
    assert held(cache[0]) == [0, 1, 2]
    cache.truncate(1)  # nothing was given up since
    assert held(cache[0]) == [0]


def test_a_snapshot_goes_back_where_truncate_cannot(make) -> None:
    cache = grow(make(3, 2, 1), 2, 2, 2)
    before = cache.snapshot(), held(cache[0])
    grow(cache, *[2] * 6)
    with pytest.raises(ak.ShapeError, match="take a snapshot"):
        cache.truncate(6)
    cache.restore(before[0])
    assert held(cache[0]) == before[1]
    assert cache.next_position.tolist() == [6]
    grow(cache, 1)
    cache.restore(before[0])
    assert held(cache[0]) == before[1]


# Layers that have come differently far


def test_a_forward_pass_that_failed_is_repaired(make) -> None:
    cache = grow(make(4, 2, num_layers=3), *[2] * 5)
    cache[0].append(*tokens([[10, 11]]))
    cache[1].append(*tokens([[10, 11]]))  # and the third layer fails
    assert [layer.next_position.tolist() for layer in cache] == [[12], [12], [10]]
    assert [held(layer) for layer in cache] == [[7, 8, 9, 10, 11], [7, 8, 9, 10, 11], [5, 6, 7, 8, 9]]
    assert cache.next_position.tolist() == [10]
    assert cache.stored.tolist() == [5]
    cache.truncate(cache.next_position)
    assert [held(layer) for layer in cache] == [[7, 8, 9], [7, 8, 9], [5, 6, 7, 8, 9]]
    cache.check_invariants()
    grow(cache, 1)
    assert [held(layer) for layer in cache] == [[7, 8, 9, 10]] * 3


def test_layers_too_far_apart_are_not_repaired_by_half(make) -> None:
    cache = grow(make(4, 2, num_layers=2), *[2] * 5)
    for start in (10, 12):
        cache[0].append(*tokens([[start, start + 1]]))
    before = [held(layer) for layer in cache]
    with pytest.raises(ak.ShapeError, match=r"go back to position \[12\] at the least, or to 0 or less, not to \[10\]"):
        cache.drop(0)
    assert [held(layer) for layer in cache] == before == [[9, 10, 11, 12, 13], [5, 6, 7, 8, 9]]
    cache.truncate(0)
    assert [held(layer) for layer in cache] == [[], []]


@pytest.mark.parametrize("count", range(9))
def test_repair_at_every_length(make, count) -> None:
    """Whatever was there, a layer that took one append too much can go back over it."""
    for window, max_append, pinned in ((1, 1, 0), (1, 2, 1), (3, 2, 0), (3, 3, 2)):
        cache = grow(make(window, max_append, pinned, num_layers=2), *[1] * count)
        cache[0].append(*tokens([range(100, 100 + max_append)]))
        cache.truncate(cache.next_position)
        assert [layer.next_position.tolist() for layer in cache] == [[count]] * 2
        first, second = map(held, cache)
        assert first == second[: min(pinned, count)] + second[len(second) - len(first) + min(pinned, count) :]
        assert set(first) >= set(range(max(count - window + 1, 0), count))


# Attending


@pytest.mark.parametrize("max_append", [1, 3, 8])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_windows_see_what_they_see_of_the_whole(make, draw, shelf, window, max_append) -> None:
    cache = make(window, max_append, batch_size=3)
    keys, values = draw(3, 2, 24, 4), draw(3, 2, 24, 3)
    mask = CAUSAL & ak.Mask.window(window)
    for start in range(0, 24, max_append):
        part = slice(start, start + max_append)
        cache[0].append(keys[:, :, part], values[:, :, part])
        shelf.poison(cache)
        query = draw(3, 4, max_append, 4)
        truth = reference.attention(query, keys[:, :, : part.stop], values[:, :, : part.stop], mask=mask)
        output, lse = cache[0].attend_with_lse(query, mask=mask)
        np.testing.assert_allclose(output, truth.output, atol=1e-12)
        np.testing.assert_allclose(lse, truth.lse, atol=1e-12)


def test_positions_count_on(make, draw) -> None:
    """Masks and ALiBi mean positions of the whole text, not places in the ring."""
    cache = make(4, 3, batch_size=2)
    keys, values, query = draw(2, 2, 21, 4), draw(2, 2, 21, 3), draw(2, 4, 2, 4)
    for start in range(0, 21, 3):
        cache[0].append(keys[:, :, start : start + 3], values[:, :, start : start + 3])
    held_now = slice(15, 21)
    for options in (
        {"mask": ak.Mask.chunked(4)},
        {"mask": ak.Mask.prefix(17)},
        {"alibi": np.array([0.5, 0.1, 1.0, 0.0])},
        {"query_offset": [17, 3], "mask": CAUSAL},
    ):
        expected = reference.attention(
            query,
            keys[:, :, held_now],
            values[:, :, held_now],
            key_offset=15,
            **{"query_offset": 19, **options},
        )
        np.testing.assert_allclose(cache[0].attend(query, **options), expected.output, atol=1e-12, err_msg=str(options))


def test_sequences_that_gave_up_differently_much(make, draw, shelf) -> None:
    cache, rng = make(3, 4, batch_size=3), np.random.default_rng(5)
    lists = shelf.Lists(cache.config)
    for _ in range(12):
        lengths = rng.integers(0, 5, 3).tolist()
        key, value = draw(3, 2, 4, 4), draw(3, 2, 4, 3)
        cache[0].append(key, value, lengths=lengths)
        lists.append(0, key, value, lengths)
        shelf.poison(cache)
        query, mask = draw(3, 4, 4, 4), CAUSAL & ak.Mask.window(3)
        output = cache[0].attend(query, mask=mask)
        for row, (whole_key, whole_value) in enumerate(lists.layers[0]):
            pieces = (array[None] for array in (query[row], whole_key, whole_value))
            truth = reference.attention(*pieces, mask=mask, query_lengths=lengths[row])
            np.testing.assert_allclose(output[row : row + 1], truth.output, atol=1e-12)


def test_copies_diverge(make) -> None:
    cache = grow(make(3, 2, 1), 2, 2, 2)
    assert cache.fork(0) == 1
    cache[0].append(*tokens([[6], [60]]))
    assert [held(cache[0], row) for row in range(2)] == [[0, 4, 5, 6], [0, 4, 5, 60]]
    cache.truncate([6, 7])
    cache[0].append(*tokens([[61], [70]]))
    assert [held(cache[0], row) for row in range(2)] == [[0, 4, 5, 61], [0, 5, 60, 70]]
