"""Caches that are wrong on purpose, one fault each, over the correct small backend.

The suite makes caches with ``attnkit.make_cache``; here the subject makes a faulty one in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.cache import ContiguousCache
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.plain import EVERYTHING, Array, Plain
from attnkit_conformance.subject import Subject


class FaultyCaches(Harness):
    """The correct backend under a faulty cache, or a faulty backend under the correct one."""

    def __init__(self, name: str, backend: type[Plain], cache: type[ContiguousCache]) -> None:
        faulty = type(name, (backend,), {"name": name})()
        super().__init__(name, faulty, faulty)
        self._cache = cache

    def make_cache(self, config: Mapping[str, Any]) -> ak.KVCache:
        correct = super().make_cache(config)  # so that what must be refused is refused
        return correct if self._cache is ContiguousCache else self._cache(ak.KVCacheConfig(**config), self.backend)


def fault(
    name: str,
    killer: str,
    cache: type[ContiguousCache] = ContiguousCache,
    *,
    backend: type[Plain] = Plain,
    layer: type[ak.CacheLayer] | None = None,
) -> Mutant:
    kind = cache if layer is None else with_layer(layer)
    return Mutant(name, killer, lambda: Subject(FaultyCaches(name.replace("_", "-"), backend, kind)))


def with_layer(layer: type[ak.CacheLayer]) -> type[ContiguousCache]:
    class Cache(ContiguousCache):
        def __init__(self, config: ak.KVCacheConfig, choice: Any) -> None:
            super().__init__(config, choice)
            self._layers = [layer(self, number, self._counts[number]) for number in range(config.num_layers)]

    return Cache


class OverwritesLast(Plain):
    """Writes new tokens one slot too early."""

    def write(self, pages: ak.Pages, slots: Array, key: Array, value: Array) -> None:
        super().write(pages, np.where(slots % max(pages.page_size, 1) > 0, slots - 1, slots), key, value)


class ThroughHalf(Plain):
    """Stores everything by way of float16."""

    def write(self, pages: ak.Pages, slots: Array, key: Array, value: Array) -> None:
        super().write(pages, slots, key.astype(np.float16), value.astype(np.float16))


class PaddingWritten(Plain):
    """Writes padding too, over the tokens of others."""

    def write(self, pages: ak.Pages, slots: Array, key: Array, value: Array) -> None:
        super().write(pages, np.where(slots < 0, 0, slots), key, value)


class CacheType(Plain):
    """Gives the element type of the cache."""

    def attend_pages(
        self, query: Array, pages: ak.Pages, table: ak.PageTable, operands: ak.Operands, plan: ak.Plan
    ) -> ak.AttentionOutput:
        output, lse = super().attend_pages(query, pages, table, operands, plan)
        return ak.AttentionOutput(output.astype(pages.key.dtype), lse)


class KeysForValues(Plain):
    """Reads back keys in the place of values where they fit."""

    def gather(self, pages: ak.Pages, slots: Array) -> tuple[Array, Array]:
        key, value = super().gather(pages, slots)
        return key, key if key.shape == value.shape else value


class Undeclaring(Plain):
    """Takes no cache of another element type, and no soft-cap."""

    declared = replace(EVERYTHING, kv_dtype=False, softcap=False)


class Stale(ak.CacheLayer):
    """Attends to what was there before the last append."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=lengths)
        self._last = int(key.shape[2])

    def _stored_arrays(self, length: int) -> Any:
        return super()._stored_arrays(max(length - getattr(self, "_last", 0), 0))


class Uncut(ak.CacheLayer):
    """Goes on attending to what was truncated."""

    _most = 0

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=lengths)
        self._most = max(self._most, int(self._counts.max()))

    def _stored_arrays(self, length: int) -> Any:
        return super()._stored_arrays(min(max(length, self._most), int(self.capacity.max())))


class Referring(ak.CacheLayer):
    """Keeps references to the caller's arrays, and reads them when it attends."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        start = self._counts.copy()
        super().append(key, value, lengths=lengths)
        self._late = (start, key, value, lengths)

    def attend_with_lse(self, query: Array, **options: Any) -> ak.AttentionOutput:
        if hasattr(self, "_late"):
            start, key, value, lengths = self._late
            pages = self._cache.pages[self._number]
            slots = self._cache.slots(pages, start, key.shape[2])
            if lengths is None and (start + key.shape[2] <= self._counts).all():
                self._cache.backend.write(pages, slots, key, value)
        return super().attend_with_lse(query, **options)


class FromZero(ak.CacheLayer):
    """Lets the queries stand at 0, 1, ... and not after what is stored."""

    def _attend(self, query: Array, options: Any, *, lse: bool) -> ak.AttentionOutput:
        return super()._attend(query, options._replace(query_offset=0), lse=lse)


class Writing(ak.CacheLayer):
    """Scales the keys where they lie, each time it attends."""

    def _attend(self, query: Array, options: Any, *, lse: bool) -> ak.AttentionOutput:
        result = super()._attend(query, options, lse=lse)
        self._cache.pages[self._number].key[...] *= 2
        return result


class Counting(ak.CacheLayer):
    """Counts the queries as tokens."""

    def _attend(self, query: Array, options: Any, *, lse: bool) -> ak.AttentionOutput:
        result = super()._attend(query, options, lse=lse)
        self._counts += 1 if (self._counts + 1 <= self.capacity).all() else 0
        return result


class CountsFirst(ak.CacheLayer):
    """Counts new tokens before it knows that they fit."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        self._counts += key.shape[2]
        self._cache.reserve(self._counts)
        self._counts -= key.shape[2]
        super().append(key, value, lengths=lengths)


class CountsUnchecked(ak.CacheLayer):
    """Counts new tokens before it looks at them, and does not take that back."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        try:
            super().append(key, value, lengths=lengths)
        except ak.AttnkitError:
            self._counts += 1
            raise


class CountsRefused(ak.CacheLayer):
    """Counts the queries as tokens, then learns that it may not answer them."""

    def _attend(self, query: Array, options: Any, *, lse: bool) -> ak.AttentionOutput:
        try:
            return super()._attend(query, options, lse=lse)
        except ak.UnsupportedError:
            self._counts += 1
            raise


class PositionsRestart(ak.CacheLayer):
    """Counts positions from the last cut on."""

    _cut = 0

    def forget_ragged(self) -> None:
        super().forget_ragged()
        self._cut = int(self._counts.min())

    @property
    def next_position(self) -> Array:
        return self._counts - self._cut


class LengthsIgnored(ak.CacheLayer):
    """Takes every token of every sequence."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=None if lengths is None else key.shape[2])


class RaggedForgotten(ak.CacheLayer):
    """Attends after a ragged append as after any other."""

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        super().append(key, value, lengths=lengths)
        self.forget_ragged()


class LongestForAll(ak.CacheLayer):
    """Takes the longest sequence's length for that of every one."""

    def _implied(self, query: Array, options: Any) -> dict[str, Array]:
        return {name: value for name, value in super()._implied(query, options).items() if name != "kv_lengths"}


class LiveCounters(ak.CacheLayer):
    """Hands out its own counters."""

    @property
    def stored(self) -> Array:
        return self._counts


class LiveViews(ak.CacheLayer):
    """Hands out views of its storage."""

    def read(self) -> tuple[Array, Array]:
        pages, most = self._cache.pages[self._number], int(self._counts.max())
        if (self._counts != most).any():
            return super().read()
        return pages.key[:, :, :most], pages.value[:, :, :most]


CACHE_MUTANTS = [
    fault("append_overwrites_last", "TestCacheEquivalence", backend=OverwritesLast),
    fault("stored_through_half", "TestCacheEquivalence", backend=ThroughHalf),
    fault("padding_written", "TestCacheEquivalence::test_ragged_appends", backend=PaddingWritten),
    fault("output_of_cache_type", "TestOwnership", backend=CacheType),
    fault("keys_read_for_values", "TestReorder", backend=KeysForValues),
    fault("stale_cache", "TestCacheEquivalence", layer=Stale),
    fault("truncated_still_seen", "TestForgetting", layer=Uncut),
    fault("caller_buffer_kept", "TestOwnership", layer=Referring),
    fault("queries_from_zero", "TestCacheEquivalence", layer=FromZero),
    fault("attend_writes", "TestFailedCalls", layer=Writing),
    fault("attend_counts", "TestFailedCalls", layer=Counting),
    fault("counted_before_it_fails", "TestFailedCalls", layer=CountsFirst),
    fault("counted_before_it_is_checked", "TestFailedCalls::test_arguments_that_do_not_fit", layer=CountsUnchecked),
    fault("refused_after_it_was_counted", "TestCacheEdges", backend=Undeclaring, layer=CountsRefused),
    fault("positions_restart", "TestForgetting", layer=PositionsRestart),
    fault("append_lengths_ignored", "TestCacheEquivalence::test_ragged_appends", layer=LengthsIgnored),
    fault("ragged_queries_forgotten", "TestCacheEquivalence::test_ragged_appends", layer=RaggedForgotten),
    fault("longest_for_all", "TestCacheEquivalence::test_ragged_appends", layer=LongestForAll),
    fault("counters_handed_out", "TestOwnership", layer=LiveCounters),
    fault("views_handed_out", "TestOwnership", layer=LiveViews),
]
