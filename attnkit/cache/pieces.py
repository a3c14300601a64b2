"""PieceCache: each sequence is one page, a piece of its own; what contiguous caches and rings have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from attnkit.backend import Backend
from attnkit.cache.base import KVCache
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.layout import Room, Row, Rows, new_positions, table_of
from attnkit.cache.storage import copy_all, copy_pages, fresh_pages
from attnkit.pages import IntArray, Pages, SlotTable, Span, melted


class Pieces(NamedTuple):
    """Storage of each layer, and the page of each sequence in it."""

    pages: list[Pages]
    rows: list[int]

    @property
    def size(self) -> int:
        """Slots of a sequence."""
        return self.pages[0].page_size

    @property
    def free(self) -> list[int]:
        """Pages of no sequence."""
        count = self.pages[0].slots // self.size if self.size else len(self.rows)
        return sorted(set(range(count)) - set(self.rows))


class PieceCache(KVCache):
    """Sequences in a page each; copies are real copies."""

    def __init__(self, config: KVCacheConfig, choice: str | Backend) -> None:
        super().__init__(config, choice)
        self.pieces = self.fresh(config.batch_size, config.capacity_for(0))

    @property
    def pages(self) -> Sequence[Pages]:
        """Storage of each layer."""
        return self.pieces.pages

    @property
    def rows(self) -> list[Row]:
        """The page of each sequence."""
        return [(page,) for page in self.pieces.rows]

    @contextmanager
    def joining(self, rows: Sequence[Row], longest: IntArray) -> Iterator[None]:
        """Add rows at the end with room for ``longest [n]`` tokens."""
        before = self.pieces
        try:
            self.become(self.room_for(longest, np.zeros_like(longest)))
            self.arrange([*range(self.batch_size), *[None] * len(rows)])
            yield
        except BaseException:
            self.become(before)
            raise

    def fresh(self, batch: int, size: int) -> Pieces:
        """Give storage of ``size`` slots for each of ``batch`` sequences."""
        return Pieces(fresh_pages(self.backend, self.config, batch * size, size), list(range(batch)))

    def places(self, start: int, stop: int) -> Iterator[Span]:
        """Give the slots of positions ``start .. stop``, counted from the start of a page."""
        yield start, stop

    def spans(self, sequence: int, start: int, stop: int) -> Iterator[Span]:
        """Give the slots of the positions ``start .. stop`` of a sequence."""
        return self._spans_in(self.pieces, sequence, start, stop)

    @contextmanager
    def reserve(self, layer: int, taken: IntArray) -> Iterator[Room]:
        """Find room for ``taken [B]`` more tokens in a layer, for all layers at once."""
        start = self.counters.next[layer]
        pieces, positions = self.room_for(start, taken), new_positions(start, taken)
        if pieces is self.pieces:
            yield Room(pieces.pages, self.table(positions))
        else:
            yield Room(pieces.pages, table_of(positions, partial(self._spans_in, pieces)))
            self.become(pieces)

    def room_for(self, start: IntArray, taken: IntArray) -> Pieces:
        """Give storage with room for ``taken [B]`` tokens from ``start [B]`` on: the present one, or a larger copy."""
        del start, taken
        return self.pieces

    def arrange(self, source: Rows) -> None:
        """Let row ``i`` be what was row ``source[i]``; pages stay where they are as far as there are free ones."""
        old, free = self.pieces, self.pieces.free
        rows: list[int] = []
        moves: list[tuple[int, int]] = []
        for row in source:
            page = None if row is None else old.rows[row]
            if page is None or page in rows:
                if not free:
                    self.become(self.copied(source))
                    return
                target = free.pop(0)
                if page is not None:
                    moves.append((page, target))
                page = target
            rows.append(page)
        copy_pages(self.backend, old.pages, moves)
        self.become(Pieces(old.pages, rows))

    def copied(self, source: Rows, size: int | None = None) -> Pieces:
        """Give fresh storage with what rows ``source`` hold now, in order, in pages of ``size`` slots."""
        fresh = self.fresh(len(source), self.pieces.size if size is None else size)
        kept = [(row, target) for target, row in enumerate(source) if row is not None]
        for layer, (old, new) in enumerate(zip(self.pieces.pages, fresh.pages, strict=True)):
            spans = self[layer].table().spans
            moves = [
                (spans[row], melted(self._moved(span, row, target * fresh.size) for span in spans[row]))
                for row, target in kept
            ]
            slots = [SlotTable(tuple(places)).slots for places in zip(*moves, strict=True)]
            if slots:
                old.copy(self.backend, slots[0], new, slots[1])
        return fresh

    def become(self, pieces: Pieces) -> None:
        """Take storage over."""
        if pieces is not self.pieces:
            self.pieces = pieces
            self.moved()

    def clear(self) -> None:
        """Go back to the storage of an empty cache of as many sequences."""
        self.become(self.fresh(self.batch_size, self.config.capacity_for(0)))

    def hold(self) -> Pieces:
        """Copy what is stored now."""
        return self.copied(range(self.batch_size))

    def put_back(self, held: Pieces) -> None:
        """Store again what ``hold`` kept."""
        fresh = self.fresh(len(held.rows), held.size)
        copy_all(self.backend, held.pages, fresh.pages)
        self.become(fresh)

    def trim(self) -> None:
        """Do nothing: a piece stays as large as it is."""

    def check_rows(self) -> None:
        """Raise ``RuntimeError`` if sequences share a page, or lie outside the storage."""
        rows, slots = self.pieces.rows, self.pieces.pages[0].slots
        if len(set(rows)) != len(rows) or len(rows) != self.batch_size:
            raise RuntimeError(f"rows: {self.batch_size} sequences in pages {rows}")
        if rows and (max(rows) + 1) * self.pieces.size > slots:
            raise RuntimeError(f"rows: pages {rows} of {self.pieces.size} slots in {slots} slots")

    def _spans_in(self, pieces: Pieces, sequence: int, start: int, stop: int) -> Iterator[Span]:
        first = pieces.rows[sequence] * pieces.size
        return ((first + low, first + high) for low, high in self.places(start, stop))

    def _moved(self, span: Span, row: int, start: int) -> Span:
        shift = start - self.pieces.rows[row] * self.pieces.size
        return span[0] + shift, span[1] + shift
