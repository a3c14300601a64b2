"""Rings that are wrong on purpose: what they give up and when, where their tokens stand, how far they go back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.cache import RingCache
from attnkit.cache.attending import attend_table, stored_table
from attnkit.cache.pieces import PieceCache, Pieces
from attnkit.pages import Span
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.faulty_caches import counting
from attnkit_conformance.selftest.plain import Array


class EvictsTooEarly(RingCache):
    """Keeps one token less than the next query sees."""

    @property
    def behind(self) -> int:
        return max(super().behind - 1, 0)


class EvictsTooLate(RingCache):
    """Keeps one token more than the next query sees."""

    @property
    def behind(self) -> int:
        return super().behind + 1


class EvictsForTheLast(RingCache):
    """Gives up what the last new token does not see, though the first one does."""

    def gone_after(self, layer: int, taken: Array) -> Array:
        seen = self.counters.next[layer] + taken - self.pinned - self.behind - 1
        return np.maximum(self.counters.gone[layer], np.where(taken > 0, seen, 0))


class EvictsAlike(RingCache):
    """Gives up as many tokens of every sequence as of the longest one."""

    def gone_after(self, layer: int, taken: Array) -> Array:
        most = super().gone_after(layer, taken).max(initial=0)
        return np.minimum(most, np.maximum(self.counters.next[layer] - self.pinned, 0))


class PaddingEvicts(RingCache):
    """Gives up tokens of a sequence that takes none."""

    def gone_after(self, layer: int, taken: Array) -> Array:
        return super().gone_after(layer, np.ones_like(taken))


class EvictedSeen(RingCache):
    """Attends over one token more than it holds, where there was one."""

    def attend(self, layer: int, query: Array, options: Any, lse: bool) -> ak.AttentionOutput:
        counters = self.counters
        with counting(self, replace(counters, gone=np.maximum(counters.gone - 1, 0))):
            return super().attend(layer, query, options, lse)


class Shifted(RingCache):
    """Takes the first token that it holds for the first of the text."""

    def attend(self, layer: int, query: Array, options: Any, lse: bool) -> ak.AttentionOutput:
        return attend_table(self, layer, stored_table(self, layer), None, query, options, lse)


class HeldPositions(RingCache):
    """Counts the tokens that it holds for those that it was given."""

    @property
    def next_position(self) -> Array:
        return self.stored


class WrapsOverPinned(RingCache):
    """Lets the ring go round through the slots of pinned tokens."""

    def places(self, start: int, stop: int) -> Iterator[Span]:
        size = self.pinned + self.config.ring_size
        return ((place % size, place % size + 1) for place in range(start, stop))


class PinnedEvicted(RingCache):
    """Pins nothing: the first tokens go with the others."""

    def attend(self, layer: int, query: Array, options: Any, lse: bool) -> ak.AttentionOutput:
        gone, counts = self.counters.gone[layer], self.counters.next[layer]
        first = np.where(gone > 0, self.pinned + gone, 0)
        table = self.table(tuple(((start, stop),) for start, stop in zip(first.tolist(), counts.tolist(), strict=True)))
        return attend_table(self, layer, table, first, query, options, lse)


class PinnedInTheWindow(RingCache):
    """Hides pinned tokens where they are outside of the window."""

    def attend(self, layer: int, query: Array, options: Any, lse: bool) -> ak.AttentionOutput:
        if self.counters.gone[layer].any():
            return super().attend(layer, query, options, lse)
        return attend_table(self, layer, stored_table(self, layer), None, query, options, lse)


class EvictedCounted(RingCache):
    """Counts what it has given up again, once it is cut."""

    def gone_within(self, name: str, kept: Array) -> Array:
        return super().gone_within(name, kept) * 0


class EvictedForgotten(RingCache):
    """Counts tokens as given up though all of its text is cut away."""

    def gone_within(self, name: str, kept: Array) -> Array:
        super().gone_within(name, kept)
        return np.minimum(self.counters.gone, kept)


class GoesBackTooFar(RingCache):
    """Goes back to where the next query would see what is gone."""

    def gone_within(self, name: str, kept: Array) -> Array:
        del name
        return np.clip(self.counters.gone, 0, np.maximum(kept - self.pinned, 0))


class NeverGoesBack(RingCache):
    """Refuses every cut once it has given something up."""

    def gone_within(self, name: str, kept: Array) -> Array:
        if self.counters.gone.any():
            raise ak.ShapeError(f"{name} must not be given once tokens are gone, got {kept.tolist()}")
        return super().gone_within(name, kept)


class LongAppendsWrap(RingCache):
    """Takes an append that is longer than the ring, and lets it run over itself."""

    def room_for(self, start: Array, taken: Array) -> Pieces:
        return PieceCache.room_for(self, start, taken)

    def places(self, start: int, stop: int) -> Iterator[Span]:
        return (span for place in range(start, stop) for span in super(LongAppendsWrap, self).places(place, place + 1))


RING_MUTANTS = [
    fault("ring_evicts_too_early", "TestRing::test_it_evicts_at_the_next_append", EvictsTooEarly),
    fault("ring_evicts_too_late", "TestRing::test_it_evicts_at_the_next_append", EvictsTooLate),
    fault("ring_evicts_for_the_last", "TestRing::test_it_evicts_at_the_next_append", EvictsForTheLast),
    fault("ring_evicts_alike", "TestRing::test_each_sequence_evicts_its_own", EvictsAlike),
    fault("padding_evicts", "TestRing::test_each_sequence_evicts_its_own", PaddingEvicts),
    fault("evicted_token_seen", "TestRing::test_what_is_evicted_leaves_no_trace", EvictedSeen),
    fault("eviction_shifts_positions", "TestRing::test_positions_go_on_counting", Shifted),
    fault("ring_counts_what_it_holds", "TestRing::test_positions_go_on_counting", HeldPositions),
    fault("ring_wraps_over_pinned", "TestRing::test_pinned_tokens_stay", WrapsOverPinned),
    fault("pinned_tokens_evicted", "TestRing::test_pinned_tokens_stay", PinnedEvicted),
    fault("pinned_tokens_in_the_window", "TestRing", PinnedInTheWindow),
    fault("evicted_tokens_counted_again", "TestRing::test_how_far_back_it_goes", EvictedCounted),
    fault("evicted_tokens_never_forgotten", "TestRing::test_how_far_back_it_goes", EvictedForgotten),
    fault("ring_goes_back_too_far", "TestRing::test_how_far_back_it_goes", GoesBackTooFar),
    fault("ring_never_goes_back", "TestRing::test_how_far_back_it_goes", NeverGoesBack),
    fault("ring_append_wraps", "TestRing::test_a_longer_append_is_refused", LongAppendsWrap),
]
