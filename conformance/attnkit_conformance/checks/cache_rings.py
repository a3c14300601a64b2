"""A ring holds the last tokens, and the first few; what it evicted is gone, and it says so (C6, C9).

Axes: ``B`` sequences, ``T`` new tokens, ``S`` key length.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.cache_truth import Places, stored_tolerance, stored_truth
from attnkit_conformance.cases import Array
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import cache_case
from attnkit_conformance.compare import assert_equal, assert_within
from attnkit_conformance.structures import causal, chunked, window
from attnkit_conformance.subject import Subject


def _ring(layout: Ring, label: str = "ring", *, left: int = 0, **fields: object) -> CacheCase:
    options = {"mask": window(left or layout.window)}
    return cache_case(label, 40, **{"layout": layout, "options": options, **fields})


RINGS = [
    _ring(Ring(6, 4)),
    _ring(Ring(4, 5, pinned=3), layers=2, heads=4),
    _ring(Ring(5, 8, pinned=1), codecs=("int8", "int8")),
    _ring(Ring(1, 3)),
    _ring(Ring(1, 2, pinned=2)),
]
WHOLE = [
    *(case for case in RINGS if not case.coded),
    _ring(Ring(6, 4), "ring-narrow", left=3),
    _ring(Ring(8, 4, pinned=2), "ring-steps", options={"mask": causal() & window(8) & chunked(16), "softcap": 2.0}),
    _ring(
        Ring(8, 4, pinned=2),
        "ring-terms",
        options={"mask": window(8), "alibi": ak.alibi_slopes(2), "sinks": np.array([0.5, -1], np.float32)},
    ),
    _ring(Ring(6, 4, pinned=2), dtype="bfloat16", pinned=("dtype",)),
]
RAGGED = [_ring(Ring(4, 6), ragged=True), _ring(Ring(4, 6, pinned=2), ragged=True, batch=3)]


class TestRing(Checks):
    """C9: positions go on counting, and a chunk still finds the ``W - 1`` tokens before it."""

    @over(RINGS)
    def test_it_evicts_at_the_next_append(self, backend: Subject, case: CacheCase) -> None:
        """It holds its pinned tokens, ``W - 1`` from before the last append, and what that brought."""
        history, ring = History(backend, case), _ring_of(case)
        most = ring.pinned + ring.window - 1
        assert_equal(history.cache.counted("capacity"), np.full(case.batch, most + ring.max_append), what="capacity")
        for count in (1, ring.max_append, 1, ring.max_append, ring.max_append, 1):
            reached = history.positions()
            history.extend(count)
            assert_equal(history.cache.counted("stored"), np.minimum(reached, most) + count, what="stored")
            history.check()
            history.attend(count, case.options)
            history.attend(1, {})

    @over(WHOLE)
    def test_positions_go_on_counting(self, backend: Subject, case: CacheCase) -> None:
        """Chunk by chunk, with a window, it gives the rows of attention over the whole text with that window."""
        history, ring, (query, key, value) = History(backend, case), _ring_of(case), case.arrays
        whole = Places([np.arange(case.keys)] * case.batch, np.full(case.batch, case.keys), ring.pinned)
        truth = stored_truth(query, key, value, case.options, whole)
        bound = stored_tolerance(truth, backend.arithmetic(case.dtype), whole).output
        start, sizes = 0, case.rng("chunks")
        while start < case.keys:
            stop = min(start + int(sizes.integers(1, ring.max_append + 1)), case.keys)
            for layer in history.layers:
                history.append((key[:, :, start:stop], value[:, :, start:stop]), layer=layer)
            output = history.ask(query[:, :, start:stop], case.options).output
            rows = np.s_[:, :, start:stop]
            assert_within(output, truth.output[rows], bound[rows], what=f"output of rows {start} to {stop}")
            start = stop
        assert_equal(history.cache.counted("next_position"), np.full(case.batch, case.keys), what="next_position")

    @over(RINGS)
    def test_how_far_back_it_goes(self, backend: Subject, case: CacheCase) -> None:
        """C6: it goes back as long as the next query finds its window, or to pinned tokens alone; else it says no."""
        ring = _ring_of(case)
        for tokens in (ring.pinned + ring.window - 1, ring.pinned + ring.window + ring.max_append + 1):
            for kept in range(tokens + 1):
                history = History(backend, case)
                history.extend(tokens)
                if kept % 2:
                    history.drop(tokens - kept)
                else:
                    history.truncate(kept)
                history.check()
            history.attend(None, case.options)

    @over(RINGS)
    def test_what_is_evicted_leaves_no_trace(self, backend: Subject, case: CacheCase) -> None:
        """A8: NaN goes round the ring and out of it, and is cut off inside it; nobody sees it afterwards."""
        history, ring = History(backend, case), _ring_of(case)
        history.extend(max(ring.pinned, 1))
        for _ in range(3):
            history.extend(ring.max_append, value=np.nan)
            history.truncate(history.positions() - ring.max_append)
            history.attend(1, case.options)
            history.extend(ring.window, value=np.inf)
            history.extend(2 * ring.window + ring.max_append)
            history.check()
            history.attend(1, case.options)

    @over([case for case in RINGS if case.layout.first])
    def test_pinned_tokens_stay(self, backend: Subject, case: CacheCase) -> None:
        """The first tokens are held and seen outside of any window, however many come; one may go back to them."""
        history, ring = History(backend, case), _ring_of(case)
        for count in (1, ring.pinned + 1, 20, 7):
            history.extend(count)
            history.check()
            history.attend(1, case.options)
            history.attend(ring.max_append, {"mask": window(1)})
        for kept in (ring.pinned, ring.pinned - 1, 0):
            history.truncate(kept)
            history.check()
            history.extend(ring.window + ring.max_append + 2)
            history.attend(2, case.options)

    @over([*RINGS, *RAGGED])
    def test_a_longer_append_is_refused(self, backend: Subject, case: CacheCase) -> None:
        """C3: more than ``max_append`` tokens raise ``CacheCapacityError``, before and after it is full."""
        history, ring = History(backend, case), _ring_of(case)
        for _ in range(3):
            given = [backend.array(array) for array in history.tokens(ring.max_append + 1)]
            history.fails(ak.CacheCapacityError, partial(history.cache[0].append, *given))
            history.extend(ring.max_append)
            history.check()
            history.attend(1, case.options)

    @over(RAGGED)
    def test_each_sequence_evicts_its_own(self, backend: Subject, case: CacheCase) -> None:
        """C2: padding evicts nothing, and may make an append longer than ``max_append``."""
        history, ring = History(backend, case), _ring_of(case)
        for number in range(6):
            lengths = (np.arange(case.batch) * 3 + number) % (ring.max_append + 1)
            history.append(_poisoned(history, ring.max_append + 2, lengths), lengths)
            history.check()
            history.attend(ring.max_append + 2, case.options)
            history.attend(1, case.options)


def _ring_of(case: CacheCase) -> Ring:
    return cast(Ring, case.layout)


def _poisoned(history: History, count: int, lengths: Array) -> tuple[Array, Array]:
    """Draw tokens with NaN beyond the length of each sequence."""
    key, value = history.tokens(count)
    beyond = (np.arange(count) >= lengths[:, None])[:, None, :, None]
    return np.where(beyond, np.array(np.nan, key.dtype), key), np.where(beyond, np.array(np.nan, value.dtype), value)
