"""Pages: their edges leave no trace, and what is given back is there for others (C3, C8, C9).

Axes: ``B`` sequences.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import cache_case
from attnkit_conformance.compare import assert_equal
from attnkit_conformance.subject import Subject


def _paged(page_size: int, num_pages: int = 0, **fields: object) -> CacheCase:
    return cache_case("paged", 12, **{"layout": Paged(page_size, num_pages), "chunk": 2, **fields})


PAGES = [
    _paged(4),
    _paged(1, layers=2),
    _paged(64),
    _paged(3, codecs=("int8", "int4")),
]
POOLS = [_paged(4, 8), _paged(4, 8, layers=2, codecs=("int8", "int8"))]


class TestPages(Checks):
    """C9: a sequence in pages is the same as a sequence in one piece."""

    @over(PAGES)
    def test_across_boundaries(self, backend: Subject, case: CacheCase) -> None:
        """Appends end before, at and after the edge of a page, and go across several; so do cuts."""
        history, size = History(backend, case), _size(case)
        for stop in sorted({1, size - 1, size, size + 1, 2 * size, 3 * size + 2} - {0}):
            history.extend(stop - int(history.positions()[0]))
            history.check()
            history.attend()
        for stop in sorted({2 * size + 1, 2 * size, 2 * size - 1, size, size - 1} - {0}, reverse=True):
            history.truncate(stop)
            history.attend()
            history.extend(2)
            history.check()
            history.attend()
            history.truncate(stop)

    @over(POOLS)
    def test_freed_pages_leave_no_trace(self, backend: Subject, case: CacheCase) -> None:
        """A8, C8: pages full of NaN come back to the pool by every way there is; nobody sees what they held."""
        history, pages = History(backend, case), _pages(case)
        whole = pages * _size(case) // case.batch
        empty = history.snapshot()
        for give_back in (
            partial(history.truncate, 0),
            partial(history.drop, whole),
            history.reset,
            partial(history.restore, empty),
        ):
            history.extend(whole, value=np.nan)
            give_back()
            history.extend(5)
            history.check()
            history.attend()
            history.extend(whole - 5)
            history.attend()
            history.truncate(0)
        history.extend(whole, value=np.inf)
        history.release(0)
        history.truncate(0)
        history.extend(pages * _size(case) // history.batch)
        history.check()
        history.attend()

    @over(POOLS)
    def test_an_exhausted_pool(self, backend: Subject, case: CacheCase) -> None:
        """C3, C8: no page left raises ``CacheCapacityError``; nothing changes, however often, and nothing is lost."""
        history = History(backend, case)
        history.extend(9)
        given = [backend.array(array) for array in history.tokens(9)]
        for _ in range(3):
            assert_equal(history.cache.counted("capacity"), np.full(case.batch, 20), what="capacity")
            history.fails(ak.CacheCapacityError, lambda: history.cache[0].append(*given))
        history.extend(7)
        history.check()
        history.release(0)
        history.attend()
        history.extend(16)
        history.check()
        history.attend()
        given = [backend.array(array) for array in history.tokens(1)]
        history.fails(ak.CacheCapacityError, lambda: history.cache[0].append(*given))

    @over([_paged(4), *POOLS])
    def test_two_caches_of_one_pool(self, backend: Subject, case: CacheCase) -> None:
        """C8: caches of one pool hold pages of their own, and what one gives back the other may take."""
        first, second = (History(backend, case, cache) for cache in backend.pooled_caches(case.config(), 2))
        for history in (first, second):  # what the pool has left depends on both
            history.lists.pool = None
        for one, other in ((first, second), (second, first)):
            one.extend(6)
            other.check()
            other.extend(2)
            one.truncate(3)
            one.extend(2, value=np.nan)
            one.truncate(3)
            for history in (one, other):
                history.check()
                history.attend()
            one.reset()
            other.extend(4)
            other.attend()
            other.reset()
        if _pages(case):
            _assert_they_compete(backend, first, second)


def _assert_they_compete(backend: Subject, first: History, second: History) -> None:
    """Let one cache take every page, then give them back for the other."""
    first.extend(16)
    given = [backend.array(array) for array in second.tokens(1)]
    second.refused(ak.CacheCapacityError, lambda: second.cache[0].append(*given))
    first.check()
    first.release(1)
    second.extend(8)
    for history in (first, second):
        history.check()
        history.attend()


def _size(case: CacheCase) -> int:
    return int(case.layout.fields["page_size"])


def _pages(case: CacheCase) -> int:
    return int(case.layout.fields["num_pages"] or 0)
