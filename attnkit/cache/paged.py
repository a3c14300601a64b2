"""PagedCache: a sequence is any pages of a pool, shared copy-on-write; one page table a sequence for all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from attnkit.backend import Backend
from attnkit.cache.base import KVCache
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.layout import Grain, Positions, Room, Row, Rows, new_positions, table_of
from attnkit.cache.locking import locked
from attnkit.cache.pool import Holding, PagePool
from attnkit.checks import row_number
from attnkit.errors import CacheCapacityError, ShapeError
from attnkit.pages import IntArray, Pages, SlotTable, Span
from attnkit.request import round_length


class Extension(NamedTuple):
    """Rows with room for an append: the pages that are new in them, and the shared ones that copies replace."""

    rows: list[Row]
    fresh: list[int]
    copies: list[tuple[int, int]]


class PagedCache(KVCache):
    """Sequences in pages of ``config.page_size`` tokens.

    Attributes
    ----------
    pool
        Where the pages come from; several caches may share one.
    """

    def __init__(self, config: KVCacheConfig, choice: str | Backend, pool: PagePool | None = None) -> None:
        super().__init__(config, choice)
        self.pool = PagePool(config, backend=choice) if pool is None else _fitting(pool, config, self.backend)
        with self.pool.lock:
            self._held = Holding(self.pool, [()] * config.batch_size)
            self._seen = self.pages
            self.pool.users.add(self)

    @property
    def pages(self) -> Sequence[Pages]:
        """Storage of each layer: the pool's."""
        return self.pool.pages

    @property
    def rows(self) -> list[Row]:
        """The pages of each sequence, in token order."""
        return list(self._held.rows)

    @property
    def capacity(self) -> IntArray:
        """Tokens that each sequence has room for, ``[B]``, if it alone takes what is free in the pool."""
        with self.lock, self.pool.lock:
            free, counts = self.pool.free, self.counters.next.T.tolist()
            room = [self._room(row, free, count) for row, count in zip(self._held.rows, counts, strict=True)]
        most = self.config.max_length
        return np.array(room if most is None else [min(count, most) for count in room], np.int64)

    def table(self, positions: Positions) -> SlotTable:
        """Give the slots of ranges of positions of every sequence; a pool that grew may have moved them."""
        if self._seen is not self.pages:
            self.moved()
            self._seen = self.pages
        return super().table(positions)

    def spans(self, sequence: int, start: int, stop: int) -> Iterator[Span]:
        """Give the slots of the positions ``start .. stop`` of a sequence."""
        return _spans(self._held.rows[sequence], self.pool.page_size, start, stop)

    @contextmanager
    def reserve(self, layer: int, taken: IntArray) -> Iterator[Room]:
        """Find room for ``taken [B]`` more tokens in a layer, for all layers at once; shared pages are copied first."""
        pool, start = self.pool, self.counters.next[layer]
        self._check_length(start + taken)
        with pool.lock:
            extension = self._extended(start.tolist(), (start + taken).tolist())
            try:
                pool.copy(extension.copies)
                yield Room(pool.pages, self._table(extension, new_positions(start, taken)))
            except BaseException:
                pool.give_back([tuple(extension.fresh)])
                raise
            if extension.fresh:
                self._held.rows[:] = extension.rows
                pool.give_back([tuple(old for old, _ in extension.copies)])
                self.moved()

    @contextmanager
    def joining(self, rows: Sequence[Row], longest: IntArray) -> Iterator[None]:
        """Add rows at the end, in pages of their own that they share as they did in an image."""
        del longest  # the rows tell how many pages there are
        pool, held = self.pool, self._held.rows
        with pool.lock:
            pages = pool.take(len(set(chain.from_iterable(rows))))
            added = [tuple(pages[number] for number in row) for row in rows]
            pool.frames.share(chain.from_iterable(added))
            pool.give_back([tuple(pages)])  # they have their holders now
            held.extend(added)
            try:
                yield
            except BaseException:
                del held[len(held) - len(added) :]
                pool.give_back(added)
                raise

    def arrange(self, source: Rows) -> None:
        """Let row ``i`` be what was row ``source[i]``; pages are shared, none is copied."""
        old, times = self._held.rows, Counter(row for row in source if row is not None)
        with self.pool.lock:
            self.pool.frames.share(page for row, count in times.items() for page in old[row] * (count - 1))
            dropped = [pages for row, pages in enumerate(old) if row not in times]
            self._held.rows[:] = [() if row is None else old[row] for row in source]
            self.pool.give_back(dropped)

    def clear(self) -> None:
        """Give every page back to the pool."""
        with self.pool.lock:
            dropped, self._held.rows[:] = self.rows, [()] * self.batch_size
            self.pool.give_back(dropped)

    def hold(self) -> Holding:
        """Share all pages with a snapshot; none is copied."""
        with self.pool.lock:
            self.pool.frames.share(page for row in self._held.rows for page in row)
            return Holding(self.pool, self._held.rows)

    def put_back(self, held: Holding) -> None:
        """Share again the pages of a snapshot."""
        with self.pool.lock:
            self.pool.frames.share(page for row in held.rows for page in row)
            dropped, self._held.rows[:] = self.rows, held.rows
            self.pool.give_back(dropped)

    def grain(self) -> Grain | None:
        """The pages of the pool; without a longest length there is room for a power of two of tokens."""
        longest = int(self.counters.next.max(initial=0))
        return Grain(self.pool.page_size, self.config.max_length or round_length(max(longest, self.pool.page_size)))

    def trim(self) -> None:
        """Give back the pages behind the last token of any layer."""
        needed = [-(-n // self.pool.page_size) for n in self.counters.next.max(axis=0).tolist()]
        with self.pool.lock:
            dropped = [row[count:] for row, count in zip(self._held.rows, needed, strict=True)]
            self._held.rows[:] = [row[:count] for row, count in zip(self._held.rows, needed, strict=True)]
            self.pool.give_back(dropped)

    @locked
    def admit(self, tokens: Sequence[int] | None = None) -> int:
        """Add a sequence at the end, and give its number; it starts with the pages that hold a beginning of ``tokens``.

        Never all of ``tokens``: at least one is left to compute with.
        """
        with self.pool.lock:
            pages = self._matched(() if tokens is None else tokens[: len(tokens) - 1])
            counters = self.counters.arranged([*range(self.batch_size), None], len(pages) * self.pool.page_size)
            self.pool.frames.share(pages)
            self._held.rows.append(tuple(pages))
        self._commit(counters)
        return self.batch_size - 1

    @locked
    def match_prefix(self, tokens: Sequence[int]) -> int:
        """Give how many of the first ``tokens`` lie in pages that a new sequence can share."""
        with self.pool.lock:
            return len(self._matched(tokens)) * self.pool.page_size

    @locked
    def remember(self, sequence: int, tokens: Sequence[int]) -> int:
        """Tell which token ids a sequence holds from its beginning, so that later prompts find its full pages.

        Returns
        -------
        How many of them can be found.

        Raises
        ------
        ShapeError, DTypeError
            If there is no such sequence, or it holds fewer tokens.
        """
        row = row_number("sequence", sequence, self.batch_size)
        held = int(self.next_position[row])
        if len(tokens) > held:
            raise ShapeError(f"tokens must be at most the {held} that sequence {row} holds, got {len(tokens)}")
        with self.pool.lock:
            self.pool.prefix.add(tokens, self._held.rows[row])
        return self.match_prefix(tokens)

    def check_rows(self) -> None:
        """Raise ``RuntimeError`` if a page is counted wrongly, or a sequence has too few."""
        rows, size = self._held.rows, self.pool.page_size
        room = [len(row) * size for row in rows]
        if len(rows) != self.batch_size or (self.counters.next > np.array(room, np.int64)).any():
            raise RuntimeError(f"rows: room for {room} tokens, which are {self.counters.next.tolist()}")
        self.pool.check()

    def _matched(self, tokens: Sequence[int]) -> list[int]:
        """Give the pages that hold a beginning of ``tokens``, of no more than a sequence of this cache may hold."""
        return self.pool.prefix.match(tokens[: self.config.max_length])

    def _room(self, row: Row, free: int, counts: list[int]) -> int:
        """Give how many tokens a row may come to hold, whose layers hold ``counts`` now; shared pages are copied."""
        size, holders = self.pool.page_size, self.pool.frames.holders
        copies = sum(holders(page) > 1 for page in row[min(counts) // size :])
        return (len(row) + free - copies) * size if copies <= free else max(counts)

    def _extended(self, start: list[int], stop: list[int]) -> Extension:
        """Take the pages for positions ``start .. stop`` of every sequence; all or nothing."""
        pool, fresh, copies, rows = self.pool, list[int](), list[tuple[int, int]](), list[Row]()
        bounds = zip(start, stop, strict=True)
        wanted = [range(n // pool.page_size, -(-end // pool.page_size) if end > n else 0) for n, end in bounds]
        lacking = self._lacking(wanted)
        pool.make_room(sum(map(len, lacking)))  # or be refused, before any page is forgotten; rows may be numbered anew
        try:
            for old, places, own in zip(self._held.rows, wanted, lacking, strict=True):
                for place in sorted(set(places).difference(own)):
                    pool.forget(old[place])
                fresh += pool.frames.take(len(own), old[own[0] - 1] if any(own[:1]) else None)
                row = [*old, *[-1] * (places.stop - len(old))]
                for place, page in zip(own, fresh[len(fresh) - len(own) :], strict=True):
                    row[place] = page
                copies += [(old[place], row[place]) for place in own if place < len(old)]
                rows.append(tuple(row))
        except BaseException:
            pool.give_back([tuple(fresh)])
            raise
        return Extension(rows, fresh, copies)

    def _lacking(self, wanted: Sequence[range]) -> list[list[int]]:
        """Give the places about to be written to that each row has no page of its own for; the last sharer keeps it."""
        left, found = Counter[int](), list[list[int]]()
        for row, places in zip(self._held.rows, wanted, strict=True):
            own = list[int]()
            for place in places:
                if place < len(row) and self.pool.frames.holders(row[place]) - left[row[place]] == 1:
                    continue
                if place < len(row):
                    left[row[place]] += 1
                own.append(place)
            found.append(own)
        return found

    def _table(self, extension: Extension, positions: Positions) -> SlotTable:
        """Give the slots of positions in rows that may have new pages."""
        rows, size = extension.rows, self.pool.page_size
        if not extension.fresh:
            return self.table(positions)
        return table_of(positions, lambda sequence, start, stop: _spans(rows[sequence], size, start, stop))

    def _check_length(self, needed: IntArray) -> None:
        most = self.config.max_length
        if most is not None and needed.max(initial=0) > most:
            raise CacheCapacityError(
                f"append needs room for {needed.max()} tokens, a sequence holds max_length = {most} at most; "
                "truncate or drop tokens, or make the cache with a larger max_length"
            )


@lru_cache(maxsize=256)
def _runs(row: Row) -> tuple[tuple[int, int, int], ...]:
    """Cut a row into runs of consecutive pages: ``(place of the first, its page, how many)``."""
    pages = np.array(row, np.int64)
    edges = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(row)]
    return tuple((low, row[low], high - low) for low, high in pairwise(edges) if low < high)


def _spans(row: Row, size: int, start: int, stop: int) -> Iterator[Span]:
    for place, page, count in _runs(row):
        low, high = max(start, place * size), min(stop, (place + count) * size)
        if low < high:
            shift = (page - place) * size
            yield low + shift, high + shift


def _fitting(pool: PagePool, config: KVCacheConfig, backend: Backend) -> PagePool:
    """Give a pool, or raise an error if a cache cannot take its pages from it."""
    names = ("num_layers", "num_kv_heads", "head_dim", "value_dim", "dtype", "key_codec", "value_codec", "page_size")
    unlike = [name for name in names if getattr(pool.config, name) != getattr(config, name)]
    if unlike:
        told = ", ".join(f"{name} {getattr(pool.config, name)} and not {getattr(config, name)}" for name in unlike)
        raise ShapeError(f"pool must be of the cache's shape, got one with {told}")
    if pool.backend is not backend:
        raise ShapeError(f"pool must be of the cache's backend, {backend.name!r}, got one of {pool.backend.name!r}")
    return pool
