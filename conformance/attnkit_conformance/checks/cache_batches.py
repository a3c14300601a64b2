"""The batch of a cache is a list of sequences: they come, go, and are copied as in a list (C7, C8).

Axes: ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged, Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS, cache_case
from attnkit_conformance.subject import Subject

ALIKE = [cache_case("batch", 12, chunk=2, layers=2), *(replace(case, label="batch") for case in LAYOUTS)]
MORE = [replace(case, label="more-batches") for case in GRID]
OTHERS = [
    cache_case("coming-and-going", 12, chunk=2, ragged=True, **fields)
    for fields in (
        {"layers": 2},
        {"max_length": 30, "codecs": ("int8", "int8")},
        {"layout": Ring(4, 6)},
        {"layout": Ring(4, 6, pinned=2), "codecs": ("int8", "native"), "layers": 2},
        {"layout": Paged(4), "heads": 4},
        {"layout": Paged(3, 40), "codecs": ("int4", "fp8")},
    )
]


class TestBatch(Checks):
    """C7, C8: rows move as those of a list do, in every layer, with their counters."""

    @over([*ALIKE, *MORE])
    def test_it_is_a_list(self, backend: Subject, case: CacheCase) -> None:
        """Sequences of one length are selected, repeated, copied and taken out, down to none and up again."""
        history = History(backend, case)
        history.extend(3)
        for change in (
            partial(history.select, [1, 0, 1]),
            partial(history.repeat, 2),
            partial(history.release, 2),
            partial(history.fork, 1),
            partial(history.select, [5, 0, 3]),
            partial(history.repeat, 1),
        ):
            change()
            history.check()
            history.extend(1)
        history.attend()
        steps: tuple[Callable[[], object], ...] = (
            partial(history.release, 1),
            partial(history.select, []),
            history.admit,
            partial(history.repeat, 2),
        )
        for step in steps:
            step()
            history.check()
        history.extend(4)
        history.check()
        history.attend()

    @over(OTHERS)
    def test_coming_and_going(self, backend: Subject, case: CacheCase) -> None:
        """Sequences of any length join and leave at any time; the others do not notice."""
        history = History(backend, case)
        for number in range(4):
            lengths = (np.arange(history.batch) * 2 + number) % 4
            for layer in history.layers:
                history.append(history.tokens(3), lengths, layer=layer)
            history.attend(3)
            history.admit()
            history.check()
            history.extend(1)
            history.attend()
            history.release(number % 2)
            history.check()
            history.fork(history.batch - 1)
            history.attend()

    @over([*ALIKE, *MORE])
    def test_rows_that_are_not_there(self, backend: Subject, case: CacheCase) -> None:
        """C3: numbers of no sequence raise ``ShapeError``, and nothing changes."""
        history, batch = History(backend, case), case.batch
        history.extend(3)
        cache = history.cache
        for call in (
            partial(cache.fork, batch),
            partial(cache.fork, -1),
            partial(cache.release, batch),
            partial(cache.release, -1),
            partial(cache.select, [0, batch]),
            partial(cache.select, [-1]),
            partial(cache.repeat, -1),
            partial(cache.reorder, np.arange(batch + 1)),
        ):
            history.fails(ak.ShapeError, call)
