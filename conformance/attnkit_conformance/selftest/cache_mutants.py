"""Caches that are wrong on purpose, one fault each, over the correct small backend: what tokens and counters become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faulty_caches import Layer, counting
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain


class OverwritesLast(Plain):
    """Writes new tokens one slot too early."""

    def write(self, plane: Array, slots: Array, tokens: Array) -> None:
        super().write(plane, np.where(slots > 0, slots - 1, slots), tokens)


class ThroughHalf(Plain):
    """Stores everything by way of float16."""

    def write(self, plane: Array, slots: Array, tokens: Array) -> None:
        super().write(plane, slots, tokens.astype(np.float16))


class PaddingWritten(Plain):
    """Writes padding too, over the tokens of others."""

    def write(self, plane: Array, slots: Array, tokens: Array) -> None:
        super().write(plane, np.where(slots < 0, 0, slots), tokens)


class CacheType(Plain):
    """Gives the element type of the cache."""

    def attend_pages(
        self, query: Array, pages: ak.Pages, table: ak.SlotTable, operands: ak.Operands, plan: ak.Plan
    ) -> ak.AttentionOutput:
        output, lse = super().attend_pages(query, pages, table, operands, plan)
        return ak.AttentionOutput(output.astype(np.dtype(pages.key.dtype)), lse)


class Undeclaring(Plain):
    """Takes no cache of another element type, and no soft-cap."""

    declared = replace(EVERYTHING, kv_dtype=False, softcap=False)


class KeysForValues(ak.CacheLayer):
    """Reads back keys in the place of values where they fit."""

    def read(self) -> tuple[Array, Array]:
        key, value = super().read()
        return key, key if key.shape == value.shape else value


class Stale(Layer):
    """Attends to what was there before the last append."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        before = self._cache.counters
        super().append(key, value, lengths=lengths)
        self._before = before

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        with counting(self._cache, getattr(self, "_before", self._cache.counters)):
            return attend(query, **options)


class Uncut(Layer):
    """Goes on attending to what was truncated."""

    _most = 0

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=lengths)
        self._most = max(self._most, int(self.next_position.max()))

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        counters = self._cache.counters
        seen = np.minimum(np.maximum(counters.next, self._most), self.capacity)
        with counting(self._cache, replace(counters, next=seen)):
            return attend(query, **options)


class Referring(Layer):
    """Keeps references to the caller's arrays, and reads them when it attends."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        start = self.next_position
        super().append(key, value, lengths=lengths)
        self._late = (start, key, value, lengths)

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        start, key, value, lengths = getattr(self, "_late", (self.next_position, query, query, 0))
        if lengths is None and len(start) == len(self.stored) and (start + key.shape[2] <= self.next_position).all():
            slots = self._cache.table(tuple(((n, n + key.shape[2]),) for n in start.tolist())).slots
            pages = self._cache.pages[self.number]
            pages.key.write(self._cache.backend, slots, key)
            pages.value.write(self._cache.backend, slots, value)
        return attend(query, **options)


class FromZero(Layer):
    """Lets the queries stand at 0, 1, ... and not after what is stored."""

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        return attend(query, **{**options, "query_offset": 0})


class Writing(Layer):
    """Scales the keys where they lie, each time it attends."""

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        result = attend(query, **options)
        self._cache.pages[self.number].key.arrays[-1][...] *= 2
        return result


class Counting(Layer):
    """Counts the queries as tokens."""

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        result = attend(query, **options)
        self.count(1 if (self.next_position + 1 <= self.capacity).all() else 0)
        return result


class CountsFirst(Layer):
    """Counts new tokens before it knows that they fit."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        try:
            super().append(key, value, lengths=lengths)
        except ak.CacheCapacityError:
            self.count(key.shape[2])
            raise


class CountsUnchecked(Layer):
    """Counts new tokens before it looks at them, and does not take that back."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        try:
            super().append(key, value, lengths=lengths)
        except ak.AttnkitError:
            self.count(1)
            raise


class CountsRefused(Layer):
    """Counts the queries as tokens, then learns that it may not answer them."""

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        try:
            return attend(query, **options)
        except ak.UnsupportedError:
            self.count(1)
            raise


class RememberingCuts(ak.KVCache):
    """Remembers where it was cut last."""

    cut = 0

    def _keep(self, name: str, kept: Array) -> None:
        super()._keep(name, kept)
        self.cut = min(kept.tolist(), default=0)


class PositionsRestart(ak.CacheLayer):
    """Counts positions from the last cut on."""

    @property
    def next_position(self) -> Array:
        cache: Any = self._cache
        return super().next_position - cache.cut


class LengthsIgnored(ak.CacheLayer):
    """Takes every token of every sequence."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=None if lengths is None else key.shape[2])


class RaggedForgotten(ak.CacheLayer):
    """Attends after a ragged append as after any other."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=lengths)
        self._cache.counters = replace(self._cache.counters, ragged=(None,) * self._cache.config.num_layers)


class LongestForAll(Layer):
    """Takes the longest sequence's length for that of every one."""

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        counters = self._cache.counters
        longest = counters.next.max(axis=1, keepdims=True, initial=0)
        with counting(self._cache, replace(counters, next=np.broadcast_to(longest, counters.next.shape))):
            return attend(query, **options)


class LiveCounters(ak.CacheLayer):
    """Hands out its own counters."""

    @property
    def next_position(self) -> Array:
        return self._cache.counters.next[self.number]


class LiveViews(ak.CacheLayer):
    """Hands out views of its storage."""

    def read(self) -> tuple[Array, Array]:
        pages, table = self._cache.pages[self.number], self.table()
        views = pages.key.view(table), pages.value.view(table)
        return super().read() if (table.lengths != table.longest).any() or views[0] is None else views


CACHE_MUTANTS = [
    fault("append_overwrites_last", "TestCacheEquivalence", backend=OverwritesLast),
    fault("stored_through_half", "TestCacheEquivalence", backend=ThroughHalf),
    fault("padding_written", "TestCacheEquivalence::test_ragged_appends", backend=PaddingWritten),
    fault("output_of_cache_type", "TestOwnership", backend=CacheType),
    fault("keys_read_for_values", "TestReorder", layer=KeysForValues),
    fault("stale_cache", "TestCacheEquivalence", layer=Stale),
    fault("truncated_still_seen", "TestForgetting", layer=Uncut),
    fault("caller_buffer_kept", "TestOwnership", layer=Referring),
    fault("queries_from_zero", "TestCacheEquivalence", layer=FromZero),
    fault("attend_writes", "TestFailedCalls", layer=Writing),
    fault("attend_counts", "TestFailedCalls", layer=Counting),
    fault("counted_before_it_fails", "TestFailedCalls", layer=CountsFirst),
    fault("counted_before_it_is_checked", "TestFailedCalls::test_arguments_that_do_not_fit", layer=CountsUnchecked),
    fault("refused_after_it_was_counted", "TestCacheEdges", backend=Undeclaring, layer=CountsRefused),
    fault("positions_restart", "TestForgetting", RememberingCuts, layer=PositionsRestart),
    fault("append_lengths_ignored", "TestCacheEquivalence::test_ragged_appends", layer=LengthsIgnored),
    fault("ragged_queries_forgotten", "TestCacheEquivalence::test_ragged_appends", layer=RaggedForgotten),
    fault("longest_for_all", "TestCacheEquivalence::test_ragged_appends", layer=LongestForAll),
    fault("counters_handed_out", "TestOwnership", layer=LiveCounters),
    fault("views_handed_out", "TestOwnership", layer=LiveViews),
]
