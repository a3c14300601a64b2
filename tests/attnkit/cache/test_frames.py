"""Pages of a pool: random use against plain lists, where pages are given, and what is refused."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from attnkit.cache.frames import Frames

PAGES = st.integers(0, 29)


def spans(pages):
    """Give how many runs of consecutive pages a sequence lies in."""
    return bool(pages) + sum(after != page + 1 for page, after in pairwise(pages))


def runs(free):
    """Give the lengths of runs of consecutive pages, the longest first."""
    cuts = [0, *(i for i in range(1, len(free)) if free[i] != free[i - 1] + 1), len(free)]
    return sorted((stop - start for start, stop in pairwise(cuts)), reverse=True)


def observe(frames):
    """Give what can be seen of frames without changing them."""
    return frames.count, frames.free, frames.used, frames.kept, [frames.holders(page) for page in range(frames.count)]


class AgainstLists(RuleBasedStateMachine):
    """Each page has a number of holders in a list; kept pages stand in another, the next to be evicted first.

    Pages of ``worth`` are kept. Evicting one makes its neighbour (0 and 1, 2 and 3, ...) worth nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frames = Frames(5)
        self.frames.keep = lambda page: page in self.worth
        self.frames.on_evict = self.evict
        self.holders = [0] * 5
        self.kept: list[int] = []
        self.worth = set(range(30))
        self.evicted: list[int] = []

    @property
    def held(self) -> list[int]:
        return [page for page, holders in enumerate(self.holders) if holders]

    @property
    def unclaimed(self) -> list[int]:
        return [page for page, holders in enumerate(self.holders) if not holders and page not in self.kept]

    def evict(self, page):
        assert self.frames.holders(page) == 0
        self.evicted.append(page)
        self.frames.discard([page ^ 1] if page ^ 1 < self.frames.count else [])

    def refuses(self, operation, *arguments):
        before = observe(self.frames)
        with pytest.raises(ValueError, match=r"page|number"):
            operation(*arguments)
        assert observe(self.frames) == before
        assert not self.evicted

    @rule(number=st.integers(0, 8), after=st.none() | PAGES)
    def take(self, number, after):
        if number > len(self.unclaimed) + len(self.kept) or (after is not None and after >= len(self.holders)):
            self.refuses(self.frames.take, number, after)
            return
        victims = []
        while len(self.unclaimed) < number:
            victims.append(self.kept.pop(0))
            self.kept = [page for page in self.kept if page != victims[-1] ^ 1]
        free = self.unclaimed
        pages = self.frames.take(number, after)
        assert self.evicted == victims
        self.evicted.clear()
        assert all(type(page) is int for page in pages)
        assert len(set(pages)) == number
        assert set(pages) <= set(free)
        self.lies_well(pages, free, after)
        for page in pages:
            self.holders[page] = 1

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 8), data=st.data())
    def go_on(self, number, data):
        self.take(min(number, self.frames.free), data.draw(st.sampled_from(self.held)))

    def lies_well(self, pages, free, after):
        """Pages follow ``after`` without a gap as far as they can; the others lie in as few runs as possible."""
        followed = 0
        while after is not None and followed < len(pages) and after + 1 + followed in free:
            followed += 1
        if followed:
            assert pages[:followed] == list(range(after + 1, after + 1 + followed))
        rest, open_runs = pages[followed:], runs([page for page in free if page not in pages[:followed]])
        fewest = next(count for count in range(len(open_runs) + 1) if sum(open_runs[:count]) >= len(rest))
        assert spans(rest) == fewest

    @rule(pages=st.lists(PAGES, max_size=6))
    def share(self, pages):
        if any(page >= len(self.holders) or page in self.unclaimed for page in pages):
            self.refuses(self.frames.share, pages)
            return
        self.frames.share(pages)
        self.count(pages, 1)
        self.kept = [page for page in self.kept if page not in pages]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share_what_is_there(self, data):
        self.share(data.draw(st.lists(st.sampled_from(self.held + self.kept), max_size=4)))

    @rule(pages=st.lists(PAGES, max_size=6))
    def give_back(self, pages):
        if any(page >= len(self.holders) or pages.count(page) > self.holders[page] for page in pages):
            self.refuses(self.frames.give_back, pages)
            return
        self.frames.give_back(iter(pages))
        self.count(pages, -1)
        self.kept += [page for page in dict.fromkeys(pages) if page in self.worth and not self.holders[page]]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back_what_is_held(self, data):
        everything = [page for page in self.held for _ in range(self.holders[page])]
        self.give_back(data.draw(st.permutations(everything).flatmap(lambda each: st.just(each[: len(each) // 2 + 1]))))

    @rule(pages=st.lists(PAGES, max_size=4))
    def discard(self, pages):
        if any(page >= len(self.holders) for page in pages):
            self.refuses(self.frames.discard, pages)
            return
        self.frames.discard(np.array(pages, np.int32))
        self.kept = [page for page in self.kept if page not in pages]

    @rule(pages=st.just(set(range(30))) | st.sets(PAGES))
    def change_what_is_worth_keeping(self, pages):
        self.worth = pages

    @precondition(lambda self: len(self.holders) < 26)
    @rule(more=st.integers(0, 4), data=st.data())
    def grow(self, more, data):
        old, count = len(self.holders), len(self.holders) + more
        homes = data.draw(st.just(list(range(count))) | st.permutations(range(count)))[:old]
        self.frames.grow(np.array(homes, np.int64), count)
        holders, self.holders = self.holders, [0] * count
        for page, home in enumerate(homes):
            self.holders[home] = holders[page]
        self.kept = [homes[page] for page in self.kept]

    def count(self, pages, change):
        for page in pages:
            self.holders[page] += change

    @invariant()
    def counts_are_exact(self):
        assert observe(self.frames) == (
            len(self.holders),
            len(self.unclaimed) + len(self.kept),
            len(self.held),
            len(self.kept),
            self.holders,
        )
        self.frames.check({page: self.holders[page] for page in self.held})

    def teardown(self):
        """Take every page, one by one: kept ones go last, the least recently used first."""
        order, self.frames.on_evict = [], lambda page: order.append(page)
        expected = list(self.kept)
        while self.frames.free:
            self.frames.take(1)
        assert order == expected


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=80, stateful_step_count=50, deadline=None, database=None)


# Where pages are given


def test_an_unused_pool_is_filled_from_its_start() -> None:
    assert Frames(100).take(3) == [0, 1, 2]
    emptied = Frames(100)
    emptied.give_back(emptied.take(7))
    assert emptied.take(3) == [0, 1, 2]


def test_a_sequence_goes_on_in_the_page_after_its_last() -> None:
    frames = Frames(10)
    first = frames.take(2)
    second = frames.take(1)
    first += frames.take(2, after=first[-1])
    assert first == [0, 1, 2, 3]
    second += frames.take(1, after=second[-1])
    assert spans(second) == 1


def test_a_sequence_that_meets_another_jumps_once() -> None:
    frames = Frames(10)
    pages = frames.take(10)
    frames.give_back([2, 3, 6, 7, 8])
    assert frames.take(4, after=pages[1]) == [2, 3, 6, 7]


def test_a_page_that_follows_is_not_given_twice() -> None:
    frames = Frames(10)
    pages = frames.take(10)
    frames.give_back([2, 3, 4, 6, 8])
    assert frames.take(5, after=pages[1]) == [2, 3, 4, 6, 8]


@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_sequences_of_one_size_fill_a_pool_without_a_gap(sequences, size) -> None:
    frames = Frames(sequences * size)
    taken = [frames.take(size) for _ in range(sequences)]
    assert [spans(pages) for pages in taken] == [1] * sequences
    assert sorted(chain.from_iterable(taken)) == list(range(sequences * size))


@pytest.mark.parametrize("sequences", [1, 2, 4, 8])
def test_sequences_that_grow_in_turns_lie_in_one_run_each(sequences) -> None:
    frames = Frames(sequences * 32)
    taken = [frames.take(1) for _ in range(sequences)]
    for _ in range(31):
        for pages in taken:
            pages += frames.take(1, after=pages[-1])
    assert [spans(pages) for pages in taken] == [1] * sequences


def test_one_sequence_in_a_growing_pool_lies_in_one_run() -> None:
    frames, pages = Frames(1), []
    for _ in range(200):
        if not frames.free:
            frames.grow(np.arange(frames.count), 2 * frames.count)
        pages += frames.take(1, after=pages[-1] if pages else None)
    assert pages == list(range(200))


def test_sequences_in_a_growing_pool_lie_in_few_runs() -> None:
    """Each doubling makes each jump about once, not each page."""
    frames, taken = Frames(4), [[] for _ in range(4)]
    for _ in range(256):
        for pages in taken:
            if not frames.free:
                frames.grow(np.arange(frames.count), 2 * frames.count)
            pages += frames.take(1, after=pages[-1] if pages else None)
    assert max(spans(pages) for pages in taken) <= 2 * 10


def test_the_longest_runs_are_taken_first() -> None:
    frames = Frames(12)
    frames.take(12)
    frames.give_back([0, 2, 3, 5, 6, 7, 9])
    assert frames.take(6) == [5, 6, 7, 2, 3, 0]


# What is kept


def kept_in_order(count, *given_back):
    """Give frames of which all pages were given back and kept, and the list of those that are evicted."""
    frames, evicted = Frames(count), []
    frames.keep = lambda page: True
    frames.on_evict = evicted.append
    frames.take(count)
    for pages in given_back:
        frames.give_back(pages)
    return frames, evicted


def test_the_least_recently_used_is_evicted_first() -> None:
    frames, evicted = kept_in_order(6, [2, 1, 0], [5, 4, 3])
    frames.share([1])
    frames.give_back([1])
    assert frames.take(4, after=0) != []
    assert evicted == [2, 0, 5, 4]
    assert (frames.used, frames.kept, frames.free) == (4, 2, 2)


def test_free_pages_go_before_kept_ones_even_where_those_would_follow() -> None:
    frames, evicted = kept_in_order(6, [3, 2, 1])
    frames.keep = lambda page: False
    frames.give_back([5])
    assert frames.take(1, after=0) == [5]
    assert evicted == []
    assert frames.take(1, after=2) == [3]
    assert evicted == [3]


def test_a_kept_page_that_is_shared_is_not_evicted() -> None:
    frames, evicted = kept_in_order(3, [2, 1, 0])
    frames.share([2])
    assert sorted(frames.take(2)) == [0, 1]
    assert evicted == [1, 0]
    with pytest.raises(ValueError, match=r"number must lie in 0\.\.free = 0\.\.0, got 1"):
        frames.take(1)


def test_what_is_discarded_while_another_is_evicted_is_free() -> None:
    frames, evicted = kept_in_order(4, [0, 1, 2, 3])
    frames.on_evict = lambda page: (evicted.append(page), frames.discard([page, 2, 3]))
    assert frames.take(3) == [2, 3, 0]
    assert evicted == [0]
    assert frames.kept == 1
    frames.check({0: 1, 2: 1, 3: 1})


# Failures change nothing


@pytest.mark.parametrize(
    ("operation", "arguments", "message"),
    [
        ("take", (-1,), r"number must lie in 0\.\.free = 0\.\.3, got -1"),
        ("take", (4,), r"number must lie in 0\.\.free = 0\.\.3, got 4"),
        ("take", (1, 6), r"page must lie in 0\.\.5, got 6"),
        ("take", (1, -1), r"page must lie in 0\.\.5, got -1"),
        ("grow", (np.arange(6), 5), "count must be at least the 6 pages that there are, got 5"),
        ("grow", (np.arange(5), 8), r"homes must be 6 different pages below 8, got \[0, 1, 2, 3, 4\]"),
        ("grow", (np.array([0, 1, 2, 3, 4, 4]), 8), "homes must be 6 different pages below 8"),
        ("grow", (np.array([0, 1, 2, 3, 4, 8]), 8), "homes must be 6 different pages below 8"),
        ("grow", (np.array([0, 1, 2, 3, 4, -1]), 8), "homes must be 6 different pages below 8"),
        ("share", ([0, 3],), "pages must be used or kept to be shared, 3 are free"),
        ("share", ([0, -1],), r"page must lie in 0\.\.5, got -1"),
        ("give_back", ([1, 0, 1],), "a holder for each time they come, 1 have fewer"),
        ("give_back", ([0, 5],), "a holder for each time they come, 5 have fewer"),
        ("give_back", ([0, 6],), r"page must lie in 0\.\.5, got 6"),
        ("discard", ([2, 7],), r"page must lie in 0\.\.5, got 7"),
        ("holders", (-1,), r"page must lie in 0\.\.5, got -1"),
    ],
)
def test_refusals(operation, arguments, message) -> None:
    frames = Frames(6)
    frames.keep = lambda page: page == 2
    frames.take(3)
    frames.share([0])
    frames.give_back([2])
    frames.take(1, after=3)
    before = observe(frames)
    assert before[1:4] == (3, 3, 1)
    with pytest.raises(ValueError, match=message):
        getattr(frames, operation)(*arguments)
    assert observe(frames) == before


def test_a_pool_cannot_have_fewer_than_no_pages() -> None:
    with pytest.raises(ValueError, match="count must be 0 or more, got -1"):
        Frames(-1)
    empty = Frames(0)
    assert empty.take(0) == []
    assert (empty.free, empty.used) == (0, 0)
    empty.check({})


def test_a_page_number_is_an_integer() -> None:
    frames = Frames(3)
    frames.take(3)
    with pytest.raises(TypeError):
        frames.share([0, 1.5])
    frames.check({0: 1, 1: 1, 2: 1})


def test_an_owner_that_fails_to_judge_a_page_changes_nothing() -> None:
    frames = Frames(4)
    pages = frames.take(3)
    frames.keep = lambda page: page == 0 or 1 // (page - 1)
    before = observe(frames)
    with pytest.raises(ZeroDivisionError):
        frames.give_back(pages)
    assert observe(frames) == before
    frames.check({0: 1, 1: 1, 2: 1})


def test_an_owner_that_fails_at_an_eviction_loses_no_page() -> None:
    frames, _ = kept_in_order(4, [0, 1, 2])
    frames.on_evict = lambda page: 1 // (page - 1)
    with pytest.raises(ZeroDivisionError):
        frames.take(2)
    frames.check({3: 1})
    assert (frames.free, frames.kept) == (3, 2), "the page that could not be evicted is kept"
    frames.on_evict = lambda page: None
    assert sorted(frames.take(3)) == [0, 1, 2]


# Checks


@pytest.mark.parametrize(
    ("holders", "message"),
    [
        ({0: 2, 1: 1}, "page 1 counts 0 holders and has 1"),
        ({0: 1}, "page 0 counts 2 holders and has 1"),
        ({}, "page 0 counts 2 holders and has 0"),
        ({0: 2, 3: 1}, r"page 3 does not lie in 0\.\.2"),
    ],
)
def test_check_compares_holders(holders, message) -> None:
    frames = Frames(3)
    frames.share(frames.take(1))
    frames.check({0: 2})
    frames.check({0: 2, 2: 0})
    with pytest.raises(RuntimeError, match=message):
        frames.check(holders)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda frames: frames._kept.clear(), "page 1 is in state -1, and not among the kept"),
        (lambda frames: frames._kept.update({2: None}), "page 2 is in state 0, and among the kept"),
        (lambda frames: frames._states.__setitem__(2, -2), "page 2 is in state -2"),
        (lambda frames: setattr(frames, "_unclaimed", 2), "1 pages are free and 2 are counted"),
    ],
    ids=["lost", "kept-and-free", "below", "miscounted"],
)
def test_check_finds_pages_that_do_not_add_up(break_it, message) -> None:
    frames = Frames(3)
    frames.keep = lambda page: True
    frames.take(2)
    frames.give_back([1])
    frames.check({0: 1})
    break_it(frames)
    with pytest.raises(RuntimeError, match=message):
        frames.check({0: 1})
