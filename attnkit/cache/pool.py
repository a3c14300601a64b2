"""PagePool: the pages that paged caches share, their bytes and who holds them.

Several caches of one backend and one shape may take their pages from one pool; then they find each other's prefixes.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import chain
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from attnkit.backend import Backend
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.frames import Frames
from attnkit.cache.layout import Row
from attnkit.cache.prefix import PrefixIndex
from attnkit.cache.storage import checked_backend, copy_pages, fresh_pages, move_pages
from attnkit.errors import CacheCapacityError, ShapeError
from attnkit.pages import IntArray, Pages

if TYPE_CHECKING:
    from attnkit.cache.paged import PagedCache


class Holding:
    """The rows of one holder of pages: a cache, or a snapshot. Its pages go back to the pool when it is collected."""

    def __init__(self, pool: PagePool, rows: Sequence[Row]) -> None:
        self.rows: list[Row] = list(rows)
        pool.register(self)


class PagePool:
    """Pages of all layers.

    ``config.num_pages`` of them, or as many as ``config.max_length`` takes for every sequence, or as many as are
    needed. Pages that no sequence holds any more but whose tokens are known (``KVCache.remember``) are kept for later
    prompts until others need the room, the least recently used first. Safe for use by several threads.

    A pool of one cache numbers its pages anew when it grows: sequences that grew by turns lie in a row again, each with
    room behind it.

    Parameters
    ----------
    config
        Of layout ``"paged"``.
    backend
        The backend or ``"backend:path"`` that holds the bytes.

    Attributes
    ----------
    users
        The caches that take their pages from here.

    Raises
    ------
    ShapeError, DTypeError, UnsupportedError
        If the configuration is of another layout, is none, or is nothing that the backend can hold.
    """

    def __init__(self, config: KVCacheConfig, *, backend: str | Backend) -> None:
        self.backend = checked_backend(config, backend)
        if config.layout != "paged":
            raise ShapeError(f"config must be of layout 'paged', got {config.layout!r}")
        self.config = config
        self.page_size = config.page_size or 1
        self.lock = RLock()
        count = config.pool_pages(0)
        self.pages = self._allocated(count)
        self.frames = Frames(count)
        self.prefix = PrefixIndex(self.page_size)
        self.frames.keep = self.prefix.__contains__
        self.frames.on_evict = self.forget
        self.users: weakref.WeakSet[PagedCache] = weakref.WeakSet()
        self._held: dict[int, list[Row]] = {}
        self._orphans: deque[int] = deque()  # a collector may run anywhere, so what it finds is dealt with later

    @property
    def free(self) -> int:
        """Pages that a sequence could take; a pool without a limit makes more when needed."""
        with self.lock:
            self._adopt_orphans()
            return self.frames.free

    @property
    def used(self) -> int:
        """Pages that a sequence or a snapshot holds."""
        with self.lock:
            self._adopt_orphans()
            return self.frames.used

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(pages.nbytes for pages in self.pages)

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use; a page that several sequences share counts once."""
        return self.used * self.page_size * self.config.bytes_per_token

    @property
    def grows(self) -> bool:
        """Whether the pool makes more pages when needed."""
        return self.config.num_pages is None and self.config.max_length is None

    def take(self, number: int, after: int | None = None) -> list[int]:
        """Give pages to a new holder, if possible those that follow page ``after``.

        Raises
        ------
        CacheCapacityError
            If there are not enough.
        """
        self.make_room(number)
        return self.frames.take(number, after)

    def make_room(self, number: int) -> None:
        """See to it that so many pages are free; none that a prompt may find is given up yet.

        Raises
        ------
        CacheCapacityError
            If there are not enough.
        """
        self._adopt_orphans()
        if number > self.frames.free:
            self._grow(number)

    def give_back(self, rows: Iterable[Row]) -> None:
        """Take a holder off the pages of rows, so that a tail is evicted before its head."""
        self.frames.give_back(chain.from_iterable(reversed(row) for row in rows))

    def forget(self, page: int) -> None:
        """Let no later prompt find a page, nor what follows it: it is about to store other tokens."""
        if page in self.prefix:
            self.frames.discard(self.prefix.forget(page))

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages ``(from, to)`` in every layer."""
        copy_pages(self.backend, self.pages, pairs)

    def register(self, holding: Holding) -> None:
        """Know a holder, until it is collected."""
        self._held[id(holding.rows)] = holding.rows
        weakref.finalize(holding, self._orphans.append, id(holding.rows)).atexit = False

    def check(self) -> None:
        """Raise ``RuntimeError`` unless every page is counted for exactly its holders."""
        with self.lock:
            self._adopt_orphans()
            self.frames.check(Counter(chain.from_iterable(self._rows())))
            self.prefix.check()

    def _adopt_orphans(self) -> None:
        while self._orphans:
            self.give_back(self._held.pop(self._orphans.popleft()))

    def _grow(self, number: int) -> None:
        config, count = self.config, self.frames.count
        if not self.grows:
            raise CacheCapacityError(
                f"{number} more pages of {self.page_size} tokens are needed, {self.frames.free} of the pool's {count} "
                "are free; release, truncate or offload sequences, or make the cache with more num_pages, or with "
                "neither num_pages nor max_length to let it grow"
            )
        larger = config.pool_pages(self.frames.used + number)
        pages, homes = self._allocated(larger), self._homes(larger)
        move_pages(self.backend, self.pages, pages, np.arange(len(homes)), homes)
        self.frames.grow(homes, larger)
        self.prefix.renumber(homes)
        for rows in self._held.values():
            rows[:] = [tuple(homes[list(row)].tolist()) for row in rows]
        self.pages = pages

    def _homes(self, count: int) -> IntArray:
        """Give each page its number in a larger pool: the old one, where somebody else may know it."""
        old, rows = self.frames.count, [list(dict.fromkeys(row)) for row in self._rows() if row]
        if len(self.users) != 1 or len(set(chain.from_iterable(rows))) != self.frames.used:
            return np.arange(old)
        homes, end, room = np.full(old, -1), 0, count - self.frames.used - self.frames.kept
        for number, row in enumerate(rows):
            new = [page for page in row if homes[page] < 0]
            homes[new] = end + np.arange(len(new))
            end += len(new) + room * (number + 1) // len(rows) - room * number // len(rows)
        rest = sorted(np.flatnonzero(homes < 0).tolist(), key=self.prefix.__contains__)  # those that are kept go last
        spare = np.setdiff1d(np.arange(count), homes)
        homes[rest] = spare[len(spare) - len(rest) :]
        return homes

    def _rows(self) -> Iterable[Row]:
        """Give the rows of all holders."""
        return chain.from_iterable(self._held.values())

    def _allocated(self, count: int) -> list[Pages]:
        return fresh_pages(self.backend, self.config, count * self.page_size, self.page_size)
