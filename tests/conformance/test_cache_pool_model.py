"""The pages of a pool, counted by who holds them."""

from __future__ import annotations

from attnkit_conformance.cache_layouts import Paged
from attnkit_conformance.cache_pool_model import PoolModel


def pool(*counts: int) -> PoolModel:
    """Give a pool of eight pages of four tokens, and sequences of so many tokens."""
    made = PoolModel(Paged(4), 8, [()] * len(counts))
    made.take([0] * len(counts), counts)
    return made


def test_tokens_take_pages() -> None:
    assert [pool(*counts).free for counts in ((), (0,), (1,), (4,), (5, 4))] == [8, 8, 7, 7, 5]


def test_copies_share_pages_until_they_write() -> None:
    held = pool(6)
    held.arrange([0, 0, 0])
    assert held.free == 6
    held.take([6, 6, 6], [1, 0, 0])
    assert held.free == 5
    held.take([7, 6, 6], [0, 1, 1])
    assert len({row[1] for row in held.rows}) == 3
    assert len({row[0] for row in held.rows}) == 1
    assert held.free == 4


def test_the_last_writer_may_copy_or_not() -> None:
    held = pool(6)
    held.arrange([0, 0])
    assert held.needed([6, 6], [1, 1]) == range(1, 3)  # either writes where both were, or a copy
    assert held.needed([6, 6], [0, 1]) == range(1, 2)
    assert held.needed([6, 6], [3, 0]) == range(2, 3)


def test_asking_changes_nothing() -> None:
    held = pool(6)
    before = list(held.rows)
    held.needed([6], [20])
    assert held.rows == before


def test_cuts_and_those_that_leave_give_pages_back() -> None:
    held = pool(9, 4)
    held.cut([5, 4])
    assert held.free == 5
    held.arrange([1])
    assert held.free == 7
    held.arrange([None, 0])
    assert held.free == 7


def test_snapshots_hold_pages() -> None:
    held = pool(8)
    held.snapshots.append(list(held.rows))
    held.cut([0])
    assert held.free == 6
    assert held.without_snapshots().free == 8
    held.take([0], [4])
    assert held.free == 5
