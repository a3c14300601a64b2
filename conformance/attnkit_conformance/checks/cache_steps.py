"""Steps: room and counters first, tokens and queries after, so that these can be captured (C12).

Axes: ``B`` sequences, ``T`` new tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_equivalence import DECODING, RAGGED, STACK
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS, cache_case
from attnkit_conformance.structures import chunked, window
from attnkit_conformance.subject import Subject

COMMON = [replace(case, label=f"step-{case.label}") for case in (*STACK[:2], *DECODING, *LAYOUTS)]
CHUNKED = cache_case("ring-chunked", 40, options={"mask": window(3) & chunked(5)}, layout=Ring(3, 5))
MORE = [replace(case, label=f"more-step-{case.label}") for case in (STACK[2], *GRID, *RAGGED, CHUNKED)]


class TestSteps(Checks):
    """C12: work inside a step is work outside of it."""

    @over([*COMMON, *MORE])
    def test_steps_are_appends(self, backend: Subject, case: CacheCase) -> None:
        """The same tokens, counters and results, whatever comes between two steps."""
        history = History(backend, case)
        history.extend(3)
        for count in (1, 1, 2, 1, 1, 1):
            most = min(count, case.layout.longest_append or count) if case.chunk != 1 else 1
            history.step(most, history.rng.integers(0, most + 1, case.batch) if case.ragged else None)
            history.check()
        history.extend(2)
        history.reorder(np.arange(case.batch)[::-1])
        for _ in range(5):
            history.step(1)
        history.check()
        history.attend(1)

    @over(COMMON)
    def test_a_step_ends(self, backend: Subject, case: CacheCase) -> None:
        """After the next change of the cache, nothing is stored by way of a step; it can be taken back before that."""
        history = History(backend, case)
        history.extend(3)
        step = history.cache.begin_step(1)
        history.cache.drop(1)
        given = [backend.array(array) for array in history.tokens(1)]
        history.refused(ak.ShapeError, lambda: step[0].append(*given))
        history.step(1)
        history.check()
