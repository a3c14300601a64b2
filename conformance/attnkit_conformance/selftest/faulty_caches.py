"""How a cache that is wrong on purpose comes under test: as the cache of a backend's own.

A fault is written once: over ``KVCache`` or ``CacheLayer`` where it can strike any layout, else over the cache that has
what it spoils. Layouts that it cannot strike are correct.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit.cache import ContiguousCache, PagedCache, RingCache
from attnkit.cache.counters import Counters
from attnkit_conformance.selftest.faults import Mutant, fault
from attnkit_conformance.selftest.plain import Array, Plain

Cache = type[Any]
"""A class of caches: of one layout, or of all, and then an abstract one."""
LAYOUTS: Final[dict[str, type[ak.KVCache]]] = {
    "contiguous": ContiguousCache,
    "ring": RingCache,
    "paged": PagedCache,
}


def cache_fault(
    name: str,
    killer: str,
    cache: Cache = ak.KVCache,
    *,
    backend: type[Plain] = Plain,
    layer: type[ak.CacheLayer] | None = None,
) -> Mutant:
    """Make a mutant of a cache, of its layers, or of how a backend stores."""
    kind = cache if layer is None else with_layer(layer, cache)
    return fault(name, killer, backend, make_cache=maker(kind))


def maker(cache: Cache) -> Any:
    """Give a ``make_cache`` for a backend: the faulty cache in every layout that it is one of."""

    def make_cache(self: ak.Backend, config: ak.KVCacheConfig, choice: Any) -> ak.KVCache | None:
        del self
        correct = LAYOUTS[config.layout]
        base = next(kind for kind in cache.__mro__ if kind.__module__.startswith("attnkit."))
        if cache is base or not issubclass(correct, base):
            return None
        made: ak.KVCache = type(cache.__name__, (cache, correct), {})(config, choice)
        return made

    return make_cache


def with_layer(layer: type[ak.CacheLayer], cache: Cache = ak.KVCache) -> Cache:
    """Give a cache of faulty layers."""

    class Layered(cache):  # type: ignore[misc]  # whichever it is
        def __init__(self, config: ak.KVCacheConfig, choice: Any) -> None:
            super().__init__(config, choice)
            self._faulty = [layer(self, number) for number in range(config.num_layers)]

        def __getitem__(self, number: int) -> ak.CacheLayer:
            return self._faulty[number]

        def __iter__(self) -> Iterator[ak.CacheLayer]:
            return iter(self._faulty)

    return Layered


class Layer(ak.CacheLayer):
    """A layer with one method for both ways to attend, and a way to count wrongly."""

    def attend(self, query: Array, **options: Any) -> Array:
        """Attend."""
        return self.answer(super().attend, query, options)

    def attend_with_lse(self, query: Array, **options: Any) -> ak.AttentionOutput:
        """Attend, with the log-sum-exp."""
        answer: ak.AttentionOutput = self.answer(super().attend_with_lse, query, options)
        return answer

    def answer(self, attend: Any, query: Array, options: dict[str, Any]) -> Any:
        """Attend, in the way that was asked for."""
        return attend(query, **options)

    def count(self, number: Array | int) -> None:
        """Count so many tokens more, which are not there."""
        counts = self._cache.counters.next.copy()
        counts[self.number] += number
        self._cache.counters = replace(self._cache.counters, next=counts)


@contextmanager
def counting(cache: Any, counters: Counters) -> Iterator[None]:
    """Let a cache count something else for a while."""
    held, cache.counters = cache.counters, counters
    try:
        yield
    finally:
        cache.counters = held


def lengths(number: Any, batch: int) -> Array:
    """Give a number for each sequence, ``[B]``."""
    return np.broadcast_to(np.asarray(number), (batch,)).copy()
