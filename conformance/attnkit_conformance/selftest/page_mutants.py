"""Pages that are wrong on purpose: which of them are read, who holds them, what is copied before it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import attnkit as ak
from attnkit.cache import PagedCache
from attnkit.cache.attending import attend_table
from attnkit.cache.frames import Frames
from attnkit.cache.layout import Room, Row
from attnkit.pages import Span
from attnkit_conformance.harness.local import Harness, Thing
from attnkit_conformance.selftest.faults import harnessed
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.plain import Array


class GrowsEmpty(ak.PagePool):
    """Grows without taking the old tokens along."""

    def _grow(self, number: int) -> None:
        super()._grow(number)
        self.pages = self._allocated(self.frames.count)


class NarrowTable(PagedCache):
    """Looks pages up in a table of two pages, which it does not renew when there are more."""

    def spans(self, sequence: int, start: int, stop: int) -> Iterator[Span]:
        row, size = self.rows[sequence][:2], self.pool.page_size
        for place in range(start, stop):
            slot = row[min(place // size, len(row) - 1)] * size + place % size
            yield slot, slot + 1


class StaleTable(PagedCache):
    """Looks tokens up where they were before sequences moved."""

    def moved(self) -> None:
        pass


class BoundaryOff(PagedCache):
    """Looks the first token of a page up in the page before it."""

    def spans(self, sequence: int, start: int, stop: int) -> Iterator[Span]:
        row, size = self.rows[sequence], self.pool.page_size
        for place in range(start, stop):
            slot = row[max(place - 1, 0) // size] * size + place % size
            yield slot, slot + 1


class WholePages(PagedCache):
    """Attends over all of the last page, however little of it is filled."""

    def attend(self, layer: int, query: Array, options: Any, lse: bool) -> ak.AttentionOutput:
        size, counts = self.pool.page_size, self.counters.next[layer].tolist()
        table = self.table(tuple(((0, -(-count // size) * size),) for count in counts))
        return attend_table(self, layer, table, None, query, options, lse)


class FreedPagesSeen(PagedCache):
    """Attends over all pages of a sequence, those behind its last token too, which others have written."""

    def trim(self) -> None:
        pass

    def attend(self, layer: int, query: Array, options: Any, lse: bool) -> ak.AttentionOutput:
        table = self.table(tuple(((0, len(row) * self.pool.page_size),) for row in self.rows))
        return attend_table(self, layer, table, None, query, options, lse)


class Leaking(ak.PagePool):
    """Takes no holder off a page."""

    def give_back(self, rows: Iterable[Row]) -> None:
        for _ in rows:
            pass


class FreeingTwice(ak.PagePool):
    """Takes two holders off a page, where it has as many, when one of them goes."""

    def give_back(self, rows: Iterable[Row]) -> None:
        for page in (page for row in rows for page in row):
            self.frames.give_back([page] * min(2, self.frames.holders(page)))


class FirstLayerCopied(ak.PagePool):
    """Copies a shared page in the first layer only, before it is written."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        every = self.pages
        self.pages = every[:1]
        super().copy(pairs)
        self.pages = every


class Unshared(Frames):
    """Knows of no second holder where a page is about to be written."""

    def holders(self, page: int) -> int:
        return min(super().holders(page), 1)


class TailShared(ak.PagePool):
    """Lets forks write into the page that they share."""

    def __init__(self, config: ak.KVCacheConfig, *, backend: Any) -> None:
        super().__init__(config, backend=backend)
        self.frames = Unshared(self.frames.count)
        self.frames.keep, self.frames.on_evict = self.prefix.__contains__, self.forget


class CopyingForks(PagedCache):
    """Copies every page of a fork at once."""

    def fork(self, sequence: int) -> int:
        number = super().fork(sequence)
        row = self._held.rows[number]
        fresh = self.pool.take(len(row))
        self.pool.copy(list(zip(row, fresh, strict=True)))
        self._held.rows[number] = tuple(fresh)
        self.pool.give_back([row])
        self.moved()
        return number


class LosesPagesInFailure(PagedCache):
    """Takes what pages there are, finds them too few, and does not give them back."""

    @contextmanager
    def reserve(self, layer: int, taken: Array) -> Iterator[Room]:
        try:
            with super().reserve(layer, taken) as room:
                yield room
        except ak.CacheCapacityError:
            self.pool.take(self.pool.free)
            raise


class FramesOfTheirOwn(Harness):
    """Lets each cache of a pool count for itself which pages are free."""

    def pooled_cache(self, config: Mapping[str, Any], pool: Thing) -> Thing:
        own = copy(pool)
        own.frames, own._held = Frames(pool.frames.count), {}
        own.frames.keep, own.frames.on_evict = own.prefix.__contains__, own.forget
        return super().pooled_cache(config, own)


class PoolsOfTheirOwn(Harness):
    """Makes a pool for each cache, whatever pool it is given."""

    def pooled_cache(self, config: Mapping[str, Any], pool: Thing) -> Thing:
        return super().pooled_cache(config, self.make_pool(config))


def pooled(pool: type[ak.PagePool]) -> type[PagedCache]:
    """Give a cache of pages of a faulty pool."""

    class Pooled(PagedCache):
        def __init__(self, config: ak.KVCacheConfig, choice: Any) -> None:
            super().__init__(config, choice, pool(config, backend=choice))

    return Pooled


PAGE_MUTANTS = [
    fault("pool_growth_forgets", "TestPages::test_across_boundaries", pooled(GrowsEmpty)),
    fault("page_table_stale_after_growth", "TestPages::test_across_boundaries", NarrowTable),
    fault("page_table_stale_after_a_move", "TestReorder", StaleTable),
    fault("page_boundary_off_by_one", "TestPages::test_across_boundaries", BoundaryOff),
    fault("last_page_read_whole", "TestPages::test_across_boundaries", WholePages),
    fault("freed_pages_seen", "TestPages::test_freed_pages_leave_no_trace", FreedPagesSeen),
    fault("pages_never_given_back", "TestPages::test_freed_pages_leave_no_trace", pooled(Leaking)),
    fault("pages_freed_twice", "TestForks", pooled(FreeingTwice)),
    fault("pages_lost_in_a_failure", "TestPages::test_an_exhausted_pool", LosesPagesInFailure),
    fault("fork_shares_the_tail", "TestForks::test_copies_diverge", pooled(TailShared)),
    fault("fork_copies_every_page", "TestForks::test_pages_are_shared_until_written", CopyingForks),
    harnessed("frames_of_their_own", "TestPages::test_two_caches_of_one_pool", FramesOfTheirOwn),
    harnessed("pools_of_their_own", "TestPages::test_two_caches_of_one_pool", PoolsOfTheirOwn),
    fault("pages_copied_in_one_layer", "TestForks::test_copies_diverge", pooled(FirstLayerCopied)),
]
