"""What a cache may not do: remember what it forgot, share what it copied, keep half of what failed (C3-C7).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_model import History
from attnkit_conformance.cache_rows import Tokens
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_equivalence import DECODING, EVERY, RAGGED, STACK
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS
from attnkit_conformance.subject import Subject

LIMITED = [case for case in (*LAYOUTS, *GRID) if case.layout.longest_append is None]
MIXED = [
    replace(case, dtype=dtype, stored=stored, pinned=("dtype",))
    for case in (STACK[2], DECODING[0])
    for dtype, stored in (("float32", "float16"), ("float32", "bfloat16"), ("float16", "float32"))
]


class TestForgetting(Checks):
    """C6: what is cut is forgotten for good; truncate then append is overwriting."""

    @over(EVERY)
    def test_what_was_cut_leaves_no_trace(self, backend: Subject, case: CacheCase) -> None:
        """NaN and infinity are stored and cut off again, then others come in their place."""
        history, count = History(backend, case), min(4, case.layout.longest_append or 4)  # what any layout takes back
        history.extend(9)
        for poison in (np.nan, np.inf, -np.inf):
            for forget in (partial(history.truncate, 9), partial(history.drop, count)):
                history.extend(count, value=poison)
                forget()
                history.check()
                history.attend()
                history.extend(2)
                history.attend()
                history.truncate(9)
        history.truncate(6)
        history.attend()
        history.extend(2)
        history.check()
        history.attend()

    @over(RAGGED)
    def test_each_sequence_on_its_own(self, backend: Subject, case: CacheCase) -> None:
        """Sequences are cut to lengths of their own."""
        history = History(backend, case)
        history.extend(9)
        history.extend(5, value=np.nan)
        history.truncate(np.arange(case.batch) + 7)
        history.attend()
        history.drop(np.arange(case.batch)[::-1])
        history.attend()
        history.extend(2)
        history.attend()
        history.check()

    @over(EVERY)
    def test_too_much_is_refused(self, backend: Subject, case: CacheCase) -> None:
        """Keeping or dropping more than is held raises, and changes nothing."""
        history = History(backend, case)
        history.extend(5)
        cache = history.cache
        for change, number in ((cache.truncate, 6), (cache.truncate, -1), (cache.drop, 6), (cache.drop, -1)):
            history.fails(ak.ShapeError, partial(change, number))
        history.fails(ak.ShapeError, partial(cache.reorder, np.full(case.batch, case.batch)))

    @over(EVERY)
    def test_reset(self, backend: Subject, case: CacheCase) -> None:
        """``reset`` gives an empty cache."""
        history = History(backend, case)
        history.extend(4, value=np.nan)
        history.reset()
        history.check()
        history.attend()
        history.extend(3)
        history.check()
        history.attend()


class TestReorder(Checks):
    """C7: permuted and duplicated sequences are copies that may diverge at once."""

    @over([replace(case, batch=4) for case in EVERY])
    def test_copies_do_not_alias(self, backend: Subject, case: CacheCase) -> None:
        """Every sequence goes on with tokens of its own."""
        history = History(backend, case)
        history.extend(6)
        for indices in ([1, 1, 0, 3], [3, 2, 1, 0], [2, 2, 2, 2], [0, 1, 2, 3]):
            history.reorder(np.array(indices))
            history.check()
            history.attend()
            history.extend(2)
            history.check()
            history.attend()

    @over([replace(RAGGED[0], batch=4)])
    def test_lengths_move_along(self, backend: Subject, case: CacheCase) -> None:
        """Sequences of different lengths."""
        history = History(backend, case)
        for layer in history.layers:
            history.append(history.tokens(7), np.array([7, 2, 5, 0]), layer=layer)
        for indices in ([3, 0, 0, 1], [1, 1, 2, 0]):
            history.reorder(np.array(indices))
            history.check()
            history.attend()
            history.extend(1)
            history.attend()


class TestFailedCalls(Checks):
    """C3: a failed call leaves the cache as it was in all that can be observed."""

    @over([replace(case, max_length=12) for case in (STACK[0], STACK[2], DECODING[0], *LIMITED)])
    def test_over_capacity(self, backend: Subject, case: CacheCase) -> None:
        """An append over capacity raises ``CacheCapacityError`` and writes nothing."""
        history = History(backend, case)
        history.extend(10)
        for count in (3, 12, 40):
            for layer in history.layers:
                history.fails(ak.CacheCapacityError, _append(history, history.tokens(count), layer=layer))
        history.extend(2)
        history.check()
        history.attend()
        history.fails(ak.CacheCapacityError, _append(history, history.tokens(1)))
        history.drop(1)
        history.extend(1)
        history.check()
        history.attend()

    @over(EVERY)
    def test_arguments_that_do_not_fit(self, backend: Subject, case: CacheCase) -> None:
        """Shapes, element types and lengths are checked before anything is written."""
        history = History(backend, case)
        history.extend(5)
        key, value = history.tokens(2)
        integers = np.ones(key.shape, np.int32), np.ones(value.shape, np.int32)
        for kind, tokens, lengths in (
            (ak.ShapeError, (key[..., :-1], value), None),
            (ak.ShapeError, (key, value[:, :, :1]), None),
            (ak.ShapeError, (key[:1], value[:1]), None),
            (ak.DTypeError, (key, integers[1]), None),
            (ak.DTypeError, (integers[0], value), None),
            (ak.ShapeError, (key, value), 3),
            (ak.ShapeError, (key, value), -1),
            (ak.ShapeError, (key, value), np.zeros(case.batch + 1, int)),
        ):
            history.fails(kind, _append(history, tokens, lengths=lengths))
        history.fails(ak.ShapeError, partial(history.ask, history.queries()[:1]))

    @over(EVERY)
    def test_attending_never_writes(self, backend: Subject, case: CacheCase) -> None:
        """C5: everything is as it was, and attending again gives the same."""
        history = History(backend, case)
        history.extend(5)
        query = history.queries()
        for layer in history.layers:
            first = history.ask(query, layer=layer).output
            history.check()
            history.assert_same(history.ask(query, layer=layer).output, first, what="output of attending again")


class TestOwnership(Checks):
    """C2, C4: the cache copies what it is given, by value, and hands out copies."""

    @over(EVERY)
    def test_nothing_is_shared(self, backend: Subject, case: CacheCase) -> None:
        """Whatever was given to the cache, or came from it, may be overwritten."""
        history = History(backend, case)
        for _ in range(2):
            for layer in history.layers:
                given = history.append(history.tokens(4), layer=layer)
                held = history.cache[layer]
                counters = (held.counter("stored"), held.counter("next_position"), history.cache.counter("stored"))
                for thing in (*given, *held.read(), *counters):
                    backend.harness.write(thing, 7)
            history.check()
            history.attend()

    @over(EVERY)
    def test_other_types_are_converted_by_value(self, backend: Subject, case: CacheCase) -> None:
        """Tokens of any other declared type are rounded to the element type of the cache."""
        for dtype in sorted(backend.capabilities.dtypes):
            history = History(backend, case)
            for layer in history.layers:
                history.append(history.tokens(3, dtype), layer=layer)
            history.check()
            history.attend()

    @over(MIXED)
    def test_queries_of_another_type(self, backend: Subject, case: CacheCase) -> None:
        """C2: the output has the element type of the query."""
        history = History(backend, case)
        history.extend(4)
        history.attend()


def _append(history: History, tokens: Tokens, *, lengths: Any = None, layer: int = 0) -> Callable[[], object]:
    given = [history.subject.array(array) for array in tokens]
    return partial(history.cache[layer].append, *given, lengths=lengths)
