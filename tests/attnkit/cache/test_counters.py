"""Counters: values that operations make anew and never change (C1)."""

from __future__ import annotations

import numpy as np
import pytest

from attnkit.cache.counters import Counters, Ragged


def ints(*numbers):
    return np.array(numbers, np.int64)


@pytest.fixture
def counters():
    """Give those of two layers over three sequences; the first layer took its last tokens ragged."""
    return Counters(
        np.array([[5, 9, 7], [5, 8, 7]]),
        np.array([[0, 3, 0], [0, 2, 1]]),
        (Ragged(4, ints(4, 0, 2)), None),
    )


def told(counters):
    """Give everything as lists."""
    ragged = [item and (item.tokens, item.taken.tolist()) for item in counters.ragged]
    return counters.next.tolist(), counters.gone.tolist(), ragged


def frozen(counters):
    """Make every change of an array an error."""
    for array in (counters.next, counters.gone, *(item.taken for item in counters.ragged if item)):
        array.flags.writeable = False
    return counters


def test_empty_ones() -> None:
    counters = Counters.empty(2, 3)
    assert told(counters) == ([[0] * 3] * 2, [[0] * 3] * 2, [None, None])
    assert counters.batch == 3
    assert Counters.empty(2, 0).batch == 0
    assert counters.next.dtype == counters.gone.dtype == np.int64


def test_what_is_stored_is_what_is_not_gone(counters) -> None:
    assert counters.stored.tolist() == [[5, 6, 7], [5, 6, 6]]


def test_an_append_counts_in_its_layer(counters) -> None:
    before = told(frozen(counters))
    after = counters.after_append(1, ints(1, 0, 2), ints(0, 4, 1), Ragged(2, ints(1, 0, 2)))
    assert told(after) == (
        [[5, 9, 7], [6, 8, 9]],
        [[0, 3, 0], [0, 4, 1]],
        [(4, [4, 0, 2]), (2, [1, 0, 2])],
    )
    assert told(counters.after_append(0, ints(1, 1, 1), ints(0, 3, 0), None))[2] == [None, None]
    assert told(counters) == before


def test_a_cut_is_that_of_every_layer(counters) -> None:
    before = told(frozen(counters))
    cut = counters.truncated(ints(5, 0, 6), np.array([[0, 0, 0], [0, 0, 1]]))
    assert told(cut) == ([[5, 0, 6]] * 2, [[0, 0, 0], [0, 0, 1]], [None, None])
    cut.next[0, 0] = 9  # the layers do not share it
    assert cut.next[1, 0] == 5
    assert told(counters) == before


@pytest.mark.parametrize(
    ("source", "start", "expected"),
    [
        ([2, 0, 0], 0, ([[7, 5, 5], [7, 5, 5]], [[0, 0, 0], [1, 0, 0]], [(4, [2, 4, 4]), None])),
        ([1, None], 0, ([[9, 0], [8, 0]], [[3, 0], [2, 0]], [(4, [0, 0]), None])),
        ([None, 1], 6, ([[6, 9], [6, 8]], [[0, 3], [0, 2]], [(4, [0, 0]), None])),
        ([], 0, ([[], []], [[], []], [None, None])),
    ],
)
def test_rows_are_those_of_a_source(counters, source, start, expected) -> None:
    before = told(frozen(counters))
    assert told(counters.arranged(source, start)) == expected
    assert told(counters) == before


def test_rows_of_no_rows() -> None:
    none = Counters.empty(2, 3).arranged([])
    assert told(none.arranged([None, None], 4)) == ([[4, 4]] * 2, [[0, 0]] * 2, [None, None])
    ragged = Counters(none.next, none.gone, (Ragged(3, ints()), None))
    assert told(ragged.arranged([None])) == ([[0]] * 2, [[0]] * 2, [None, None])  # nobody took anything


@pytest.mark.parametrize(
    ("mine", "other", "joined"),
    [
        (None, None, None),
        (None, Ragged(4, ints(1)), None),
        (Ragged(4, ints(4, 0, 2)), None, (4, [4, 0, 2, 0])),
        (Ragged(4, ints(4, 0, 2)), Ragged(4, ints(3)), (4, [4, 0, 2, 3])),
        (Ragged(4, ints(4, 0, 2)), Ragged(5, ints(3)), (4, [4, 0, 2, 0])),
    ],
)
def test_sequences_that_join(counters, mine, other, joined) -> None:
    here = frozen(Counters(counters.next, counters.gone, (mine, None)))
    more = frozen(Counters(np.array([[4], [6]]), np.array([[1], [0]]), (other, None)))
    assert told(here.joined(more)) == (
        [[5, 9, 7, 4], [5, 8, 7, 6]],
        [[0, 3, 0, 1], [0, 2, 1, 0]],
        [joined, None],
    )


def test_sequences_that_join_none_bring_their_own(counters) -> None:
    assert told(Counters.empty(2, 0).joined(counters)) == told(counters)
    assert told(counters.joined(Counters.empty(2, 0))) == told(counters)


def test_they_are_values(counters) -> None:
    with pytest.raises(AttributeError):
        counters.next = np.zeros((2, 3))
