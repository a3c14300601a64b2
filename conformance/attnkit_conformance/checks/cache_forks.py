"""Forks: a copy of a sequence goes its own way, and costs nothing until it does (C7, C8).

Axes: ``B`` sequences.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged, Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS, cache_case
from attnkit_conformance.subject import Subject


def _fork(label: str, **fields: object) -> CacheCase:
    return cache_case(label, 12, **{"chunk": 2, **fields})


FORKS = [_fork("fork", layers=2), *(replace(case, label="fork") for case in LAYOUTS), _fork("fork", layout=Paged(64))]
MORE_FORKS = [replace(case, label="more-forks") for case in GRID]
EITHER = [
    _fork("either", ragged=True, layout=Paged(4)),
    _fork("either", ragged=True, layout=Paged(3), codecs=("int8", "int8"), layers=2),
    _fork("either", ragged=True, max_length=40),
    _fork("either", ragged=True, layout=Ring(4, 5, pinned=1)),
]
SHARING = [_fork(f"sharing{layers}", batch=1, layout=Paged(4, 8), layers=layers) for layers in (1, 2)]


class TestForks(Checks):
    """C8: writers never meet."""

    @over([*FORKS, *MORE_FORKS])
    def test_copies_diverge(self, backend: Subject, case: CacheCase) -> None:
        """Every copy goes on with tokens of its own, in the page that they share the beginning of; so do its copies."""
        history = History(backend, case)
        history.extend(6)
        history.fork(0)
        history.check()
        history.extend(1)
        history.fork(2)
        history.fork(1)
        for count in (1, 4):
            history.extend(count)
            history.check()
            history.attend()
        history.drop(3)
        history.fork(3)
        history.extend(2)
        history.check()
        history.attend()

    @over(EITHER)
    def test_whoever_writes_first(self, backend: Subject, case: CacheCase) -> None:
        """The copy writes and then the original, or the other way round; one of them writes NaN, and takes it back."""
        for first in (0, 1):
            history = History(backend, case)
            history.select([0])
            history.extend(6)
            history.fork(0)
            for turn in (first, 1 - first, first):
                for poison in (True, False):
                    _append_to(history, turn, poison=poison)
                    history.check()
                    if poison:
                        history.drop(np.arange(2) * turn + (1 - np.arange(2)) * (1 - turn))
                    history.attend()

    @over(EITHER)
    def test_cut_and_overwritten(self, backend: Subject, case: CacheCase) -> None:
        """One of them goes back into what they share and writes something else there; the other one keeps it."""
        history = History(backend, case)
        history.extend(3)
        history.fork(1)
        history.truncate(np.array([2, 3, 1]))
        for layer in history.layers:
            history.append(history.tokens(2), np.array([1, 0, 2]), layer=layer)
        history.check()
        history.attend()
        history.release(1)
        history.extend(3)
        history.check()
        history.attend()

    @over(SHARING)
    def test_pages_are_shared_until_written(self, backend: Subject, case: CacheCase) -> None:
        """However many copies there are, full pages are held once: the pool lasts as long as that says."""
        history = History(backend, case)
        history.extend(16)
        for _ in range(3):
            history.fork(0)
        history.check()
        history.extend(1)  # a page for each
        history.check()
        history.attend()
        history.extend(4)  # which needs four more: it is refused
        for _ in range(3):
            history.release(1)
        history.extend(15)
        history.check()
        history.attend()


def _append_to(history: History, sequence: int, *, poison: bool) -> None:
    """Append one token to one sequence alone."""
    lengths = (np.arange(history.batch) == sequence).astype(np.int64)
    for layer in history.layers:
        tokens = history.tokens(1)
        for array in tokens if poison else ():
            array[...] = np.nan
        history.append(tokens, lengths, layer=layer)
