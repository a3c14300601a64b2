"""The batch is a list of sequences: operations of every layout are those of Python lists (C7, C8)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak

LAYOUTS = {
    "growing": {},
    "fixed": {"max_length": 20},
    "ring": {"layout": "ring", "window": 20, "max_append": 20},
    "evicting": {"layout": "ring", "window": 3, "max_append": 20, "pinned": 1},
    "paged": {"layout": "paged", "page_size": 2},
    "pool": {"layout": "paged", "page_size": 3, "num_pages": 60},
}


def tokens(rows, dtype=np.float64):
    """Give keys ``[B, 2, T, 4]`` and values ``[B, 2, T, 3]`` of numbers ``[B, T]``."""
    numbers = np.asarray(rows, dtype).reshape(len(rows), len(rows[0]) if rows else 0)[:, None, :, None]
    return [np.broadcast_to(numbers, (len(rows), 2, numbers.shape[2], size)).copy() for size in (4, 3)]


class Batch:
    """A cache, and the lists of numbers that it must hold, which are the same in both layers."""

    def __init__(self, config, backend):
        self.cache = ak.make_cache(config, backend=backend)
        self.lists = [[] for _ in range(config.batch_size)]
        self.number = 0

    def grow(self, *counts):
        """Append so many new tokens to each sequence."""
        rows = []
        for row, count in zip(self.lists, counts, strict=True):
            new = list(range(self.number, self.number + count))
            self.number += count
            row += new
            rows.append([*new, *[np.nan] * (max(counts) - count)])
        for layer in self.cache:
            layer.append(*tokens(rows), lengths=list(counts))
        return self

    def check(self):
        cache = self.cache
        assert cache.batch_size == len(self.lists) == len(cache.rows)
        assert cache.next_position.tolist() == [len(row) for row in self.lists]
        for layer in cache:
            key, value = layer.read()
            stored = layer.stored.tolist()
            assert key.shape == (len(self.lists), 2, max(stored, default=0), 4)
            for sequence, (row, count) in enumerate(zip(self.lists, stored, strict=True)):
                first = min(cache.config.pinned or 0, count)
                held = row if count == len(row) else [*row[:first], *row[len(row) - (count - first) :]]
                assert key[sequence, 1, :count, 2].tolist() == value[sequence, 0, :count, 1].tolist() == held
                assert (key[sequence, :, count:] == 0).all()
        cache.check_invariants()
        return self


@pytest.fixture(params=LAYOUTS)
def batch(request, shelf, backend):
    def batch(**changes):
        return Batch(shelf.config(**{**LAYOUTS[request.param], **changes}), backend)

    return batch


@pytest.fixture
def filled(batch):
    return batch().grow(5, 3, 4).grow(2, 0, 1).check()


# As lists


def test_admit_appends(filled) -> None:
    for number in (3, 4):
        assert filled.cache.admit() == number
        filled.lists.append([])
        filled.check()
    filled.grow(1, 0, 2, 3, 0).check()


@pytest.mark.parametrize("sequence", [0, 1, 2])
def test_release_deletes(filled, sequence) -> None:
    filled.cache.release(sequence)
    del filled.lists[sequence]
    filled.check().grow(2, 3).check()


@pytest.mark.parametrize("sequence", [0, 1, 2, np.int64(1)])
def test_fork_appends_a_copy(filled, sequence) -> None:
    assert filled.cache.fork(sequence) == 3
    filled.lists.append(list(filled.lists[sequence]))
    filled.check().grow(1, 1, 1, 1).check()


@pytest.mark.parametrize(
    "indices", [[], [1], [2, 0], [0, 1, 2], [2, 2, 2, 2, 2], [1, 0, 1, 2, 0], (0,), np.array([2, 1], np.uint8)], ids=str
)
def test_select_is_a_comprehension(filled, indices) -> None:
    filled.cache.select(indices)
    filled.lists = [list(filled.lists[index]) for index in indices]
    filled.check().grow(*[2] * len(indices)).check()


@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 1, 0], [1, 1, 1], [0, 0, 2]], ids=str)
def test_reorder_takes_as_many(filled, indices) -> None:
    filled.cache.reorder(indices)
    filled.lists = [list(filled.lists[index]) for index in indices]
    filled.check().grow(1, 2, 0).check()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_repeat_puts_copies_next_to_each_other(filled, count) -> None:
    filled.cache.repeat(count)
    filled.lists = [list(row) for row in filled.lists for _ in range(count)]
    filled.check().grow(*[1] * 3 * count).check()


def test_any_row_of_operations(filled) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        size = len(filled.lists)
        match int(rng.integers(6)):
            case 0 if size < 6:
                filled.cache.admit()
                filled.lists.append([])
            case 1 if size:
                row = int(rng.integers(size))
                filled.cache.release(row)
                del filled.lists[row]
            case 2 if 0 < size < 6:
                row = int(rng.integers(size))
                filled.cache.fork(row)
                filled.lists.append(list(filled.lists[row]))
            case 3 if size:
                indices = rng.integers(size, size=rng.integers(6))
                filled.cache.select(indices)
                filled.lists = [list(filled.lists[index]) for index in indices]
            case 4 if size and max(map(len, filled.lists)) > 10:
                filled.cache.truncate(0)
                filled.lists = [[] for _ in filled.lists]
            case _:
                filled.grow(*rng.integers(3, size=size).tolist())
        filled.check()


# No sequences


def test_a_batch_of_none(batch, draw) -> None:
    empty = batch(batch_size=0).check()
    cache = empty.cache
    for counter in (cache.next_position, cache.stored, cache.seen, cache.capacity, cache[0].stored):
        assert counter.shape == (0,)
    cache.truncate(3)
    cache.drop([])
    cache.reset()
    cache.select([])
    cache.reorder([])
    cache.repeat(3)
    snapshot = cache.snapshot()
    empty.grow().check()
    cache[0].append(*(np.zeros((0, 2, 3, size)) for size in (4, 3)))
    assert cache[0].attend(np.zeros((0, 4, 2, 4))).shape == (0, 4, 2, 3)
    empty.check()
    assert cache.admit() == 0
    empty.lists.append([])
    empty.check().grow(3).check()
    cache.restore(snapshot)
    empty.lists = []
    empty.check()


def test_the_last_one_leaves_and_others_come(filled) -> None:
    for _ in range(3):
        filled.cache.release(0)
    filled.lists = []
    filled.check()
    assert [filled.cache.admit() for _ in range(4)] == [0, 1, 2, 3]
    filled.lists = [[] for _ in range(4)]
    filled.check().grow(1, 2, 3, 0).check()


@pytest.mark.parametrize("batch_size", [0, 1, 3])
def test_a_batch_begins_with_the_configured_number(batch, batch_size) -> None:
    assert batch(batch_size=batch_size).check().cache.batch_size == batch_size


# What stays with its sequence


def test_query_lengths_stay_with_their_sequences(filled, draw) -> None:
    cache = filled.grow(3, 1, 2).cache
    query = draw(3, 4, 3, 4)
    before = cache[0].attend(query)
    assert (before[1, :, 1:] == 0).all()
    cache.select([1, 2, 1])
    np.testing.assert_allclose(cache[0].attend(query[[1, 2, 1]]), before[[1, 2, 1]], rtol=1e-13)
    cache.admit()
    after = cache[0].attend(np.concatenate([query[[1, 2, 1]], query[:1]]))
    np.testing.assert_allclose(after[:3], before[[1, 2, 1]], rtol=1e-13)
    assert (after[3] == 0).all()  # it took nothing of that append


def test_layers_that_have_come_differently_far_stay_so(filled) -> None:
    cache = filled.cache
    cache[1].append(*tokens([[1, 2], [3, 4], [5, 6]]), lengths=[2, 0, 1])
    before = [layer.next_position.tolist() for layer in cache]
    cache.fork(0)
    cache.release(1)
    assert [layer.next_position.tolist() for layer in cache] == [[row[0], row[2], row[0]] for row in before]
    cache.check_invariants()


def test_what_was_released_is_seen_by_nobody(filled, shelf) -> None:
    filled.cache.release(1)
    del filled.lists[1]
    shelf.poison(filled.cache)
    filled.check()
    filled.cache.admit()
    filled.lists.append([])
    filled.grow(0, 0, 4).check()


def test_memory_of_the_list(filled) -> None:
    """Pieces stay for those who come next; pages are given back."""
    before = filled.cache.nbytes
    filled.cache.release(0)
    filled.cache.admit()
    assert filled.cache.nbytes == before


# What is no sequence


@pytest.mark.parametrize("operation", ["fork", "release", "offload"])
@pytest.mark.parametrize(
    ("sequence", "error", "words"),
    [
        (3, ak.ShapeError, r"sequence must lie in 0\.\.B - 1 with B = 3, got 3"),
        (-1, ak.ShapeError, "got -1"),
        (1.0, ak.DTypeError, "sequence must be an integer, got float"),
        (True, ak.DTypeError, "sequence must be an integer, got bool"),
        (None, ak.DTypeError, "sequence must be an integer"),
        ([0], ak.DTypeError, "sequence must be an integer"),
    ],
    ids=str,
)
def test_a_number_of_no_sequence_changes_nothing(filled, operation, sequence, error, words) -> None:
    with pytest.raises(error, match=words):
        getattr(filled.cache, operation)(sequence)
    filled.check()


@pytest.mark.parametrize(
    ("operation", "argument", "error", "words"),
    [
        ("select", [0, 3], ak.ShapeError, r"indices must each lie in 0\.\.B - 1 with B = 3, got \[0, 3\]"),
        ("select", [-1], ak.ShapeError, "indices must each"),
        ("select", 1, ak.ShapeError, r"indices must be integers \[n\]"),
        ("select", [[0]], ak.ShapeError, r"indices must be integers \[n\]"),
        ("select", [0.0], ak.DTypeError, "indices must"),
        ("select", [True, False], ak.DTypeError, "indices must"),
        ("reorder", [0, 1], ak.ShapeError, r"indices must be \[B\] = \[3\], got 2; select takes any number"),
        ("repeat", -1, ak.ShapeError, "count must be >= 0, got -1"),
        ("repeat", 1.5, ak.DTypeError, "count must be an integer"),
        ("repeat", True, ak.DTypeError, "count must be an integer"),
        ("repeat", [1, 2], ak.ShapeError, "count must be an integer"),
    ],
    ids=str,
)
def test_numbers_that_do_not_fit_change_nothing(filled, operation, argument, error, words) -> None:
    with pytest.raises(error, match=words):
        getattr(filled.cache, operation)(argument)
    filled.check()


def test_only_pages_are_shared_by_prompts(batch) -> None:
    filled = batch().grow(6, 6, 6)
    cache, paged = filled.cache, hasattr(filled.cache, "pool")
    found = cache.remember(0, [1, 2, 3, 4, 5, 6])
    assert found == cache.match_prefix([1, 2, 3, 4, 5, 6]) == (6 if paged else 0)
    cache.admit([1, 2, 3, 4, 5, 6, 7])
    filled.lists.append(filled.lists[0][:found])
    filled.check()
