"""Stacks of layers that are wrong on purpose: what is cut, reordered, grown and counted for all layers at once."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnkit as ak
from attnkit.cache import ContiguousCache
from attnkit_conformance.selftest.cache_mutants import fault
from attnkit_conformance.selftest.plain import Array


class TruncateOneMore(ContiguousCache):
    """Keeps one token too many."""

    def truncate(self, length: Any) -> None:
        kept = np.minimum(np.asarray(length) + 1, self.stored) if np.min(length) >= 0 else length
        super().truncate(kept if np.max(length) <= self.stored.min() else length)


class TruncateOneLess(ContiguousCache):
    """Keeps one token too few."""

    def truncate(self, length: Any) -> None:
        super().truncate(np.broadcast_to(np.maximum(np.asarray(length) - 1, 0), (self.config.batch_size,)).copy())


class TruncateUnchecked(ContiguousCache):
    """Counts tokens that were never there."""

    def truncate(self, length: Any) -> None:
        self._set_counts(length)


class FirstLayerOnly(ContiguousCache):
    """Truncates the first layer and forgets the others."""

    def truncate(self, length: Any) -> None:
        others = self._counts[1:].copy()
        super().truncate(length)
        self._counts[1:] = others


class KeysOnly(ContiguousCache):
    """Reorders keys and leaves values where they are."""

    def _copy(self, layer: int, source: Array, counts: Array) -> ak.Pages:
        fresh = super()._copy(layer, source, counts)
        fresh.value[...] = self.pages[layer].value
        return fresh


class InPlaceReorder(ContiguousCache):
    """Reorders in place, reading what it has overwritten."""

    def reorder(self, indices: Array) -> None:
        source = np.asarray(indices)
        super().reorder(np.arange(self.config.batch_size) if source.max() < self.config.batch_size else indices)
        for pages in self.pages:
            for b, index in enumerate(source):
                pages.key[b], pages.value[b] = pages.key[index], pages.value[index]
        self._set_counts(self._counts[:, source])


class SharedBeams(ContiguousCache):
    """Lets duplicated sequences share their page."""

    index: Array | None = None

    def reorder(self, indices: Array) -> None:
        self.index = self.table().index[np.asarray(indices), 0]
        self._set_counts(self._counts[:, np.asarray(indices)])

    def slots(self, pages: ak.Pages, start: Array, count: int) -> Array:
        first = self.table().index[:, 0] * pages.page_size + start
        return first[:, None] + np.arange(count)[None, :]

    def table(self) -> ak.PageTable:
        batch = self.config.batch_size
        index = np.arange(batch) if self.index is None else self.index
        return ak.PageTable(index[:, None], np.zeros(batch, np.int64))


class CountsStay(ContiguousCache):
    """Reorders tokens and leaves the lengths where they are."""

    def reorder(self, indices: Array) -> None:
        counts = self._counts.copy()
        super().reorder(indices)
        self._set_counts(counts)


class OneStorage(ContiguousCache):
    """Ignores the number of a layer."""

    def initial_pages(self) -> list[ak.Pages]:
        return super().initial_pages()[:1] * self.config.num_layers

    def reserve(self, needed: Array) -> list[ak.Pages]:
        return super().reserve(needed)[:1] * self.config.num_layers


class Wrapping(ContiguousCache):
    """Starts again from the front when it is full."""

    def reserve(self, needed: Array) -> list[ak.Pages]:
        return self.pages if self.config.max_length else super().reserve(needed)

    def slots(self, pages: ak.Pages, start: Array, count: int) -> Array:
        first = np.arange(self.config.batch_size)[:, None] * pages.page_size
        return first + (start[:, None] + np.arange(count)[None, :]) % max(pages.page_size, 1)


class GrowsEmpty(ContiguousCache):
    """Grows without taking the old tokens along."""

    def _grown(self, capacity: int) -> list[ak.Pages]:
        return self._allocate(capacity)


class LongestLayer(ContiguousCache):
    """Reports the longest layer."""

    @property
    def stored(self) -> Array:
        return self._counts.max(axis=0)


class ResetKeepsCounters(ContiguousCache):
    """Throws the tokens away and goes on counting them."""

    def reset(self) -> None:
        self.pages = [type(pages)(pages.key * 0, pages.value * 0) for pages in self.pages]


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
