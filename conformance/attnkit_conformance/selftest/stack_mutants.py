"""Stacks of layers that are wrong on purpose: what is cut, reordered, grown and counted for all layers at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.cache import ContiguousCache
from attnkit.cache.layout import Rows
from attnkit.cache.pieces import PieceCache, Pieces
from attnkit.cache.storage import copy_pages
from attnkit.pages import Span
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.faulty_caches import lengths
from attnkit_conformance.selftest.plain import Array


class TruncateOneMore(ak.KVCache):
    """Keeps one token too many."""

    def truncate(self, length: Any) -> None:
        kept = np.minimum(np.asarray(length) + 1, self.next_position) if np.min(length) >= 0 else length
        super().truncate(kept if np.max(length) <= self.next_position.min() else length)


class TruncateOneLess(ak.KVCache):
    """Keeps one token too few."""

    def truncate(self, length: Any) -> None:
        super().truncate(lengths(np.maximum(np.asarray(length) - 1, 0), self.batch_size))


class TruncateUnchecked(ak.KVCache):
    """Counts tokens that were never there."""

    def truncate(self, length: Any) -> None:
        self._commit(self.counters.truncated(lengths(length, self.batch_size), self.counters.gone))


class FirstLayerOnly(ak.KVCache):
    """Truncates the first layer and forgets the others."""

    def truncate(self, length: Any) -> None:
        others = self.counters.next[1:].copy()
        super().truncate(length)
        self.counters.next[1:] = others
        self.moved()


class KeysOnly(ak.KVCache):
    """Reorders keys and leaves values where they are."""

    def reorder(self, indices: Array) -> None:
        values = [layer.read()[1] for layer in self]
        super().reorder(indices)
        for layer, value in zip(self, values, strict=True):
            slots = layer.table().slots
            self.pages[layer.number].value.write(self.backend, slots, value[:, :, : slots.shape[1]])


class InPlaceReorder(PieceCache):
    """Reorders in place, reading what it has overwritten."""

    def arrange(self, source: Rows) -> None:
        if len(source) != self.batch_size or None in source:
            super().arrange(source)
            return
        rows = self.pieces.rows
        for target, row in enumerate(source):
            copy_pages(self.backend, self.pages, [(rows[row or 0], rows[target])])


class SharedBeams(PieceCache):
    """Lets duplicated sequences share their page."""

    def arrange(self, source: Rows) -> None:
        if None in source:
            super().arrange(source)
            return
        self.become(Pieces(self.pieces.pages, [self.pieces.rows[row or 0] for row in source]))


class CountsStay(ak.KVCache):
    """Reorders tokens and leaves the lengths where they are."""

    def reorder(self, indices: Array) -> None:
        before = self.counters
        super().reorder(indices)
        self._commit(before)


class OneStorage(PieceCache):
    """Ignores the number of a layer."""

    def fresh(self, batch: int, size: int) -> Pieces:
        pages, rows = super().fresh(batch, size)
        return Pieces(pages[:1] * len(pages), rows)


class Wrapping(ContiguousCache):
    """Starts again from the front when it is full."""

    def room_for(self, start: Array, taken: Array) -> Pieces:
        return self.pieces if self.config.max_length else super().room_for(start, taken)

    def places(self, start: int, stop: int) -> Iterator[Span]:
        size = self.config.max_length or stop + 1
        return ((place % size, place % size + 1) for place in range(start, stop))


class GrowsEmpty(ContiguousCache):
    """Grows without taking the old tokens along."""

    def copied(self, source: Rows, size: int | None = None) -> Pieces:
        return super().copied(source) if size is None else self.fresh(len(source), size)


class LongestLayer(ak.KVCache):
    """Reports the longest layer."""

    @property
    def stored(self) -> Array:
        return np.asarray(self.counters.stored.max(axis=0))


class ResetKeepsCounters(PieceCache):
    """Throws the tokens away and goes on counting them."""

    def reset(self) -> None:
        self.become(self.fresh(self.batch_size, self.pieces.size))


STACK_MUTANTS = [
    fault("truncate_one_more", "TestForgetting", TruncateOneMore),
    fault("truncate_one_less", "TestForgetting", TruncateOneLess),
    fault("truncate_unchecked", "TestForgetting::test_too_much_is_refused", TruncateUnchecked),
    fault("truncate_first_layer_only", "TestForgetting", FirstLayerOnly),
    fault("reorder_keys_only", "TestReorder", KeysOnly),
    fault("reorder_in_place", "TestReorder", InPlaceReorder),
    fault("beams_shared", "TestReorder", SharedBeams),
    fault("reorder_without_lengths", "TestReorder::test_lengths_move_along", CountsStay),
    fault("layer_ignored", "TestCacheEquivalence::test_layers_are_apart", OneStorage),
    fault("capacity_wraps", "TestFailedCalls", Wrapping),
    fault("growth_forgets", "TestCacheEquivalence", GrowsEmpty),
    fault("stack_reports_longest", "TestCacheEquivalence::test_layers_are_apart", LongestLayer),
    fault("reset_keeps_counters", "TestForgetting::test_reset", ResetKeepsCounters),
]
