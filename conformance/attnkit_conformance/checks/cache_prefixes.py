"""Prefixes: a new sequence may begin with pages that hold the very same text, and with nothing else (C8).

Axes: ``B`` sequences.
"""

from __future__ import annotations

from typing import Final

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import LAYOUTS, cache_case
from attnkit_conformance.compare import assert_equal
from attnkit_conformance.subject import Subject


def _prefix(label: str, layout: Paged, **fields: object) -> CacheCase:
    return cache_case(label, 12, **{"layout": layout, "chunk": 2, "batch": 1, **fields})


ALONE = [_prefix("prefix", Paged(4)), _prefix("prefix", Paged(4), codecs=("int8", "int8"), layers=2)]
BESIDE = [
    _prefix("prefix-beside", Paged(4), ragged=True),
    _prefix("prefix-beside", Paged(3), codecs=("int8", "int4"), layers=2, ragged=True),
]
EVICTED = [_prefix("prefix-evicted", Paged(4, 6))]
WITHOUT = [
    cache_case("prefix-without", 12, chunk=2),
    *(case for case in LAYOUTS if case.layout.name != "paged"),
]
TEXT: Final = (5, 0, -1, 7, 2, 2, 1, 9, 3, 8)
_TURN: Final = 2**61 - 1  # Python's hash of an integer is its rest by this, and -1 and -2 have one hash


class TestPrefixes(Checks):
    """C8: token ids are compared, not their hashes, and whole pages are shared, never all of a prompt."""

    @over(ALONE)
    def test_equal_tokens_alone_are_shared(self, backend: Subject, case: CacheCase) -> None:
        """Other tokens, other places, other orders and equal hashes are not the same text."""
        history = History(backend, case)
        history.extend(len(TEXT))
        _assert_found(history.remember(0, TEXT), 8)
        for tokens, known in (
            (TEXT, 8),
            ((*TEXT[:8], 4, 4), 8),
            (TEXT[:7], 4),
            ((*TEXT[:5], 6, *TEXT[6:]), 4),
            (TEXT[:3], 0),
            ((), 0),
            (TEXT[4:], 0),
            ((4, *TEXT[1:]), 0),
            ((*TEXT[:3], 2, 7, *TEXT[5:]), 0),
            (TEXT[:4][::-1] + TEXT[4:], 0),
            ((*TEXT[:2], -2, *TEXT[3:]), 0),
            ((TEXT[0] + _TURN, *TEXT[1:]), 0),
            ((*TEXT[:4], TEXT[4] + _TURN, *TEXT[5:]), 4),
        ):
            _assert_found(history.cache.match_prefix(tokens), known)
        history.check()
        history.attend()
        history.refused(ak.ShapeError, lambda: history.cache.remember(0, (*TEXT, 1)))

    @over(BESIDE)
    def test_a_shared_page_is_never_written(self, backend: Subject, case: CacheCase) -> None:
        """Whoever goes back into a common beginning writes there for itself alone; the old text is not there then.

        One after the other, and all at once.
        """
        for first in ((0,), (1,), (0, 1, 2)):
            history, size = History(backend, case), int(case.layout.fields["page_size"])
            history.extend(len(TEXT))
            history.remember(0, TEXT)
            _assert_found(history.admit(TEXT), 9 // size * size)
            _assert_found(history.admit(TEXT[:size]), 0)
            history.extend(2)
            for layer in history.layers:
                _overwrite(history, first, layer)
            history.check()
            history.attend()
            history.admit((*TEXT, 1))  # it may be forgotten by now, but it is not what stands there instead
            history.check()
            history.extend(1)
            history.check()
            history.attend()

    @over(BESIDE)
    def test_it_outlives_who_wrote_it(self, backend: Subject, case: CacheCase) -> None:
        """What nobody holds any more is found as long as no one needs the room."""
        history, size = History(backend, case), int(case.layout.fields["page_size"])
        history.extend(len(TEXT))
        history.remember(0, TEXT)
        history.release(0)
        for number in (1, 2):
            _assert_found(history.admit((*TEXT, number)), 10 // size * size)
            history.extend(3)
            history.check()
            history.attend()
        history.release(0)
        history.check()
        history.attend()

    @over(EVICTED)
    def test_room_goes_to_those_who_write(self, backend: Subject, case: CacheCase) -> None:
        """Pages that are only kept for later are given to whoever needs them, the oldest first, and then not found."""
        history = History(backend, case)
        history.extend(8)
        history.remember(0, TEXT[:8])
        history.truncate(0)
        history.extend(16)
        history.check()
        history.remember(0, tuple(range(16)))
        history.truncate(0)
        history.extend(12)
        history.check()
        history.attend()
        _assert_found(history.cache.match_prefix(TEXT), 0)
        _assert_found(history.cache.match_prefix(tuple(range(16))), 12)
        history.truncate(0)
        history.extend(24)
        history.check()
        history.attend()
        _assert_found(history.cache.match_prefix(tuple(range(16))), 0)

    @over(WITHOUT)
    def test_other_layouts_know_nothing(self, backend: Subject, case: CacheCase) -> None:
        """Where sequences share no pages, nothing is found, and a new sequence is empty."""
        history = History(backend, case)
        history.extend(6)
        _assert_found(history.remember(0, TEXT[:6]), 0)
        _assert_found(history.cache.match_prefix(TEXT[:6]), 0)
        history.select([])
        _assert_found(history.admit(TEXT), 0)
        history.extend(2)
        history.check()
        history.attend()


def _overwrite(history: History, sequences: tuple[int, ...], layer: int) -> None:
    """Let some sequences go back to their second token, once for all layers, and write something else."""
    reached = history.positions()
    turn = np.isin(np.arange(history.batch), sequences)
    if not layer:
        history.truncate(np.where(turn, 2, reached))
    history.append(history.tokens(5), np.where(turn, 5, 0), layer=layer)


def _assert_found(found: int, expected: int) -> None:
    assert_equal(np.array(found), np.array(expected), what="tokens that are found")
