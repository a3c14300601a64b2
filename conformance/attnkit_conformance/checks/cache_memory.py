"""The memory of a cache is told in advance (C10)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged, Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS, cache_case
from attnkit_conformance.compare import assert_equal
from attnkit_conformance.subject import Subject

PLANNED = [
    cache_case("planned", layers=3),
    cache_case("planned", max_length=70),
    cache_case("planned", layout=Paged(16), layers=2),
    cache_case("planned", layout=Paged(4, 50)),
    *(replace(case, label="planned") for case in LAYOUTS[1:]),
]
MORE_PLANNED = [
    cache_case("more-planned", layout=Ring(6, 4, pinned=2)),
    cache_case("more-planned", value_dim=8, heads=4, layers=2),
    *(replace(case, label="more-planned") for case in GRID),
]


class TestCacheBytes(Checks):
    """C10: what a configuration says is what is allocated."""

    @over([*PLANNED, *MORE_PLANNED])
    def test_memory_is_told_in_advance(self, backend: Subject, case: CacheCase) -> None:
        """For every length that the cache comes to hold, as ``bytes_for`` says."""
        history, config = History(backend, case), ak.KVCacheConfig(**case.config())
        for length in (0, 1, 9, 33, 60):
            history.extend(length - int(history.positions()[0]))
            assert_equal(
                history.cache.counted("nbytes"), np.array(config.bytes_for(length)), what=f"bytes for {length} tokens"
            )
