"""Caches and sequences that leave and come back: files, and memory elsewhere (C8, C11).

Axes: ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import NATIVE, CacheCase
from attnkit_conformance.cache_layouts import CONTIGUOUS, Paged, Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS, cache_case
from attnkit_conformance.compare import assert_raises
from attnkit_conformance.subject import Subject


def _case(label: str, **fields: Any) -> CacheCase:
    return cache_case(label, 12, **{"chunk": 2, **fields})


SAVED = [_case("saved", layers=2), *(replace(case, label="saved") for case in LAYOUTS)]
MORE_SAVED = [
    *(replace(case, label="more-saved") for case in GRID),
    _case("more-saved-each", ragged=True, layers=2),
    _case("more-saved-each", ragged=True, layout=Paged(4), codecs=("int8", "int8")),
    _case("more-saved-each", ragged=True, layout=Ring(4, 5, pinned=1)),
]
MOVED = [
    _case("moved", layers=2),
    _case("moved", layout=Paged(4), codecs=("int8", "int8")),
    _case("moved", layout=Paged(5), codecs=("native", "fp8"), heads=4),
]
AWAY = [
    _case("away", layers=2),
    *(replace(case, label="away") for case in LAYOUTS),
    _case("away-pool", layout=Paged(4, 6), codecs=("int8", "int8")),
]
MORE_AWAY = [replace(case, label="more-away") for case in GRID]
AWAY_EACH = [
    _case("away-each", ragged=True, **fields)
    for fields in (
        {"max_length": 30},
        {"layout": Paged(4), "layers": 2},
        {"layout": Ring(4, 5, pinned=1), "codecs": ("int8", "int8")},
    )
]


class TestSaving(Checks):
    """C11: what was saved comes back bit for bit, or not at all."""

    @over([*SAVED, *MORE_SAVED])
    def test_what_was_saved_comes_back(self, backend: Subject, case: CacheCase) -> None:
        """Sequences, counters, tokens, and the query lengths that follow; then both go their own ways."""
        history = History(backend, case)
        history.reopened().check()
        history.extend(7)
        history.fork(0)
        if case.ragged:
            lengths = np.arange(history.batch)
            for layer in history.layers:
                history.append(history.tokens(3), lengths, layer=layer)
        history.check()
        other = history.reopened()
        other.check()
        other.attend(3)
        for one in (other, history, other.reopened()):
            one.extend(2)
            one.check()
            one.attend()
        history.check()
        history.select([])
        history.reopened().check()

    @over(MOVED)
    def test_into_another_kind_of_cache(self, backend: Subject, case: CacheCase) -> None:
        """Another layout, other codecs and another element type hold the same tokens, as near as their bounds say."""
        history = History(backend, case)
        history.extend(7)
        history.check()
        for other in _other_kinds(case, backend.capabilities.dtypes):
            missing = other.undeclared(backend.capabilities)
            unstored = set(missing) & {"dtypes", "layouts", "codecs"}
            if unstored:
                backend.assert_refused(unstored, partial(history.reopened, other))
                continue
            moved = history.reopened(other)
            moved.check()
            moved.extend(2)
            moved.check()
            if not missing:
                moved.attend()

    @over([*SAVED[:2], *SAVED[-1:]])
    def test_damaged_files_are_refused(self, backend: Subject, case: CacheCase) -> None:
        """One changed bit, or one missing byte, anywhere: ``CacheFileError``."""
        history = History(backend, case)
        history.extend(5)
        cache = history.cache
        file = cache.save()
        for place in (*np.linspace(0, 1, 9), 0.003, 0.01, 0.02):
            for bits in (0, 1, 0x80):
                damaged = cache.damaged(file, float(place), bits)
                assert_raises(ak.CacheFileError, partial(cache.loaded, damaged))
        other = History(backend, case, cache.loaded(file))
        other.lists = history.lists.reopened(case)
        other.check()


class TestOffloading(Checks):
    """C8: a sequence leaves, and comes back as it was."""

    @over([*AWAY, *MORE_AWAY])
    def test_away_and_back(self, backend: Subject, case: CacheCase) -> None:
        """To memory elsewhere, and to a file; the others do not notice; what comes back goes on."""
        history = History(backend, case)
        history.extend(9)
        history.check()
        for to_file in (False, True):
            away = history.offload(0, to_file=to_file)
            history.check()
            history.attend()
            history.resume(away)
            history.check()
            history.extend(1)
            history.check()
            history.attend()

    @over(AWAY_EACH)
    def test_the_others_go_on(self, backend: Subject, case: CacheCase) -> None:
        """While one is away the others go on; it comes back at its own length, more than once if wanted."""
        history = History(backend, case)
        history.extend(6)
        history.check()
        away = history.offload(1)
        history.extend(4)
        history.fork(0)
        for _ in range(2):
            history.resume(away)
            history.check()
            history.attend()
            history.extend(2)
            history.check()
            history.attend()


def _other_kinds(case: CacheCase, dtypes: Iterable[str]) -> Iterator[CacheCase]:
    """Give caches of the same shape."""
    layouts = (CONTIGUOUS, Paged(3), Paged(case.layout.fields.get("page_size", 4)), Ring(12, 4))
    codecs = (NATIVE, ("int8", "int8"), ("fp8", "int4"))
    for layout in layouts:
        yield replace(case, layout=layout)
    for names in codecs:
        yield replace(case, codecs=names)
    yield replace(case, layout=CONTIGUOUS, codecs=NATIVE, max_length=40)
    for dtype in sorted(dtypes):
        yield replace(case, dtype=dtype)
