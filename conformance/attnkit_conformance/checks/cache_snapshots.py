"""Snapshots: a cache goes back to what it was, whatever was done since (C6).

Axes: ``B`` sequences.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS, cache_case
from attnkit_conformance.subject import Subject

KEPT = [cache_case("kept", 12, chunk=2, layers=2), *(replace(case, label="kept") for case in LAYOUTS)]
MORE_KEPT = [replace(case, label="more-kept") for case in GRID]
RINGS = [
    cache_case("kept-ring", 12, chunk=2, layout=Ring(6, 4), layers=2),
    cache_case("kept-ring", 12, chunk=2, layout=Ring(4, 5, pinned=2), codecs=("int8", "int8")),
]


class TestSnapshots(Checks):
    """C6: what ``restore`` brings back is all that can be observed, as often as it is asked for."""

    @over([*KEPT, *MORE_KEPT])
    def test_going_back(self, backend: Subject, case: CacheCase) -> None:
        """After appends, cuts, copies and a reset; twice; to an earlier one and to a later one; and on from there."""
        history = History(backend, case)
        start = history.snapshot()
        history.extend(5)
        middle = history.snapshot()
        history.extend(2)
        history.restore(middle)
        history.check()
        history.attend()
        history.extend(1)
        history.fork(0)
        late = history.snapshot()
        history.drop(1)
        history.extend(3, value=np.nan)
        history.release(0)
        history.reset()
        for moment in (middle, late, start, middle, late):
            history.restore(moment)
            history.check()
            if moment is not start:
                history.drop(1)
            history.extend(2)
            history.check()
            history.attend()

    @over(RINGS)
    def test_across_a_ring(self, backend: Subject, case: CacheCase) -> None:
        """What was evicted since comes back, and can be gone back into."""
        history = History(backend, case)
        history.extend(7)
        moment = history.snapshot()
        for count in (4, 23):
            history.extend(count)
            history.truncate(7)  # which a ring may have to refuse
            history.restore(moment)
            history.check()
            history.attend()
            history.drop(1)
            history.extend(2)
            history.attend()
