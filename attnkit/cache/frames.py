"""Frames, the bookkeeping of a pool: which pages are free, in use, or kept only for later matches.

A page is in exactly one state: *used* by one or more holders, *kept* (nobody holds it, but a later prompt may find what
it stores), or *free*. Nothing here knows what a page stores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import index
from typing import Any

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]
_FREE = 0
_KEPT = -1
_SHOWN = 5


class Frames:
    """Pages of a pool: reference counts, free ones, and unreferenced ones kept for later matches.

    An exception in any method changes no holder and loses no page. Not safe for use by several threads at once: the
    pool takes its lock.

    Parameters
    ----------
    count
        Pages in the pool, all free at first.

    Attributes
    ----------
    keep
        Asked for each page that loses its last holder: whether it stays for later matches. By default none does.
    on_evict
        Told of a kept page before it is given away for something else. It may ``discard`` others that are worth nothing
        without it.
    """

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"count must be 0 or more, got {count}")
        self.keep: Callable[[int], bool] = _keep_nothing
        self.on_evict: Callable[[int], object] = _tell_nobody
        self._states: IntArray = np.zeros(count, np.int64)  # holders, or _FREE, or _KEPT
        self._unclaimed = count
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def count(self) -> int:
        """Pages in the pool."""
        return len(self._states)

    @property
    def free(self) -> int:
        """Pages that can be taken at once: free ones, and kept ones that would be evicted."""
        return self._unclaimed + len(self._kept)

    @property
    def used(self) -> int:
        """Pages with a holder."""
        return self.count - self.free

    @property
    def kept(self) -> int:
        """Pages without a holder that later prompts can still match."""
        return len(self._kept)

    def holders(self, page: int) -> int:
        """Give how many hold a page: 0 if it is free or kept."""
        self._check_number(page)
        return max(0, int(self._states[page]))

    def grow(self, homes: IntArray, count: int) -> None:
        """Number the pages anew, ``homes [pages]``, among ``count`` of them; those that are nobody's home are free.

        Raises
        ------
        ValueError
            If there are more pages already, or not every one has a home of its own.
        """
        if count < self.count:
            raise ValueError(f"count must be at least the {self.count} pages that there are, got {count}")
        apart = np.unique(homes)
        if homes.shape != self._states.shape or len(apart) < self.count or (apart < 0).any() or (apart >= count).any():
            raise ValueError(f"homes must be {self.count} different pages below {count}, got {homes.tolist()}")
        states: IntArray = np.zeros(count, np.int64)
        states[homes] = self._states
        self._unclaimed += count - self.count
        self._states, self._kept = states, OrderedDict((int(homes[page]), None) for page in self._kept)

    def take(self, number: int, after: int | None = None) -> list[int]:
        """Give ``number`` pages in token order, each with one holder.

        They go on after page ``after`` while the next page is free, so that a sequence lies in consecutive pages; the
        rest comes from the longest run of free pages, with room on both sides for its neighbours to grow. Kept pages
        are evicted only where free ones do not suffice, the least recently used first.

        Raises
        ------
        ValueError
            If fewer than ``number`` can be had; nothing is evicted then.
        """
        if not 0 <= number <= self.free:
            raise ValueError(f"number must lie in 0..free = 0..{self.free}, got {number}")
        if after is not None:
            self._check_number(after)
        self._evict(number)
        pages = [] if after is None else self._following(after, number)
        if len(pages) < number:
            pages += self._from_runs(number - len(pages), pages)
        self._states[pages] = 1
        self._unclaimed -= number
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add one holder to each page (two if it comes twice); a kept page is in use again.

        Raises
        ------
        ValueError
            If a page is free.
        """
        numbers = self._numbers(pages)
        states = self._states[numbers]
        if (states == _FREE).any():
            raise ValueError(f"pages must be used or kept to be shared, {_some(numbers[states == _FREE])} are free")
        for page in set(numbers[states == _KEPT].tolist()):
            del self._kept[page]
            self._states[page] = 0
        np.add.at(self._states, numbers, 1)

    def give_back(self, pages: Iterable[int]) -> None:
        """Take one holder off each page (two if it comes twice); without any, a page is free, or kept.

        Among those that are kept, the first is evicted first: give a sequence back from its last page to its first, so
        that its tail goes before its head.

        Raises
        ------
        ValueError
            If a page has fewer holders.
        """
        numbers, first, holders = np.unique(self._numbers(pages), return_index=True, return_counts=True)
        left = self._states[numbers] - holders
        if (left < 0).any():
            raise ValueError(f"pages must have a holder for each time they come, {_some(numbers[left < 0])} have fewer")
        gone = numbers[np.argsort(first)][left[np.argsort(first)] == 0].tolist()  # in the order given
        kept = [page for page in gone if self.keep(page)]
        self._states[numbers] = left
        self._states[kept] = _KEPT
        self._kept.update(dict.fromkeys(kept))
        self._unclaimed += len(gone) - len(kept)

    def discard(self, pages: Iterable[int]) -> None:
        """Make the kept ones among ``pages`` free; the others stay as they are."""
        for page in self._numbers(pages).tolist():
            if page in self._kept:
                del self._kept[page]
                self._states[page] = _FREE
                self._unclaimed += 1

    def check(self, holders: Mapping[int, int]) -> None:
        """Make sure that the counts are those of ``holders`` (pages not named have none), and that they add up.

        Raises
        ------
        RuntimeError
            If they are not; the message names the pages.
        """
        wrong = list(islice(self._faults(holders), _SHOWN))
        if wrong:
            raise RuntimeError("the pages of the pool do not add up: " + "; ".join(wrong))

    def _faults(self, holders: Mapping[int, int]) -> Iterator[str]:
        """Give what is wrong, in words."""
        for page in holders:
            if not 0 <= page < self.count:
                yield f"page {page} does not lie in 0..{self.count - 1}"
        for page, state in enumerate(self._states.tolist()):
            if max(0, state) != holders.get(page, 0):
                yield f"page {page} counts {max(0, state)} holders and has {holders.get(page, 0)}"
            if (state == _KEPT) != (page in self._kept) or state < _KEPT:
                yield f"page {page} is in state {state}, and {'' if page in self._kept else 'not '}among the kept"
        free = int((self._states == _FREE).sum())
        if free != self._unclaimed:
            yield f"{free} pages are free and {self._unclaimed} are counted"

    def _evict(self, number: int) -> None:
        """Free kept pages until ``number`` are free."""
        while self._unclaimed < number:
            page = next(iter(self._kept))
            self.on_evict(page)
            self.discard([page])

    def _following(self, page: int, number: int) -> list[int]:
        """Give up to ``number`` free pages that follow ``page`` without a gap."""
        end = page + 1
        while end - page <= number and end < self.count and self._states[end] == _FREE:
            end += 1
        return list(range(page + 1, end))

    def _from_runs(self, number: int, taken: list[int]) -> list[int]:
        """Give ``number`` free pages out of as few runs as possible, none of them in ``taken``."""
        free = self._states == _FREE
        free[taken] = False
        edges = np.flatnonzero(np.diff(free, prepend=False, append=False))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        pages: list[int] = []
        for run in np.argsort(-lengths, kind="stable"):
            start, length = int(starts[run]), int(lengths[run])
            rest = number - len(pages)
            if length > rest:
                start += self._offset(start, length, rest)
            pages += range(start, start + min(length, rest))
            if len(pages) == number:
                break
        return pages

    def _offset(self, start: int, length: int, number: int) -> int:
        """Give where in a run that is longer than needed to begin.

        In the middle, so that several growing sequences do not get in each other's way, but whole multiples of what is
        asked away from the start, so that sequences of one size fill a pool without a remainder. An unused pool is
        filled from its start.
        """
        if start == 0 and not self.used:
            return 0
        return (length - number) // 2 // number * number

    def _numbers(self, pages: Iterable[int]) -> IntArray:
        numbers = np.fromiter(map(index, pages), np.int64)
        outside = numbers[(numbers < 0) | (numbers >= self.count)]
        if outside.size:
            self._check_number(int(outside[0]))
        return numbers

    def _check_number(self, page: int) -> None:
        if not 0 <= page < self.count:
            raise ValueError(f"page must lie in 0..{self.count - 1}, got {page}")


def _keep_nothing(page: int) -> bool:
    del page
    return False


def _tell_nobody(page: int) -> None:
    del page


def _some(pages: Iterable[int]) -> str:
    """Name the first few pages."""
    return ", ".join(str(page) for page in islice(pages, _SHOWN))
