"""A cache is what it stores: attending over it is attention over the plain concatenation (C1, C2, C5).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged, Ring
from attnkit_conformance.cache_model import History
from attnkit_conformance.cases import each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS
from attnkit_conformance.compare import assert_within
from attnkit_conformance.structures import CAUSALLY, causal, chunked, window
from attnkit_conformance.subject import Answer, Subject


def _cache(label: str, tokens: int = 24, options: Mapping[str, Any] = CAUSALLY, **fields: Any) -> CacheCase:
    return CacheCase(label=label, queries=tokens, keys=tokens, options=options, **fields)


def _by(chunks: tuple[int, ...], case: CacheCase) -> list[CacheCase]:
    return [replace(case, chunk=chunk) for chunk in chunks]


CHUNKED = [
    *_by((1, 64), _cache("causal", 140)),
    *_by((1, 7, 64, 0), _cache("causal", 70, max_length=80)),
    *_by((1, 7, 0), _cache("grouped", 70, heads=4)),
    *_by((1, 7, 0), _cache("window", 70, {"mask": window(20)})),
    *_by((1, 7), _cache("chunked", 40, {"mask": causal() & chunked(16)})),
    *_by((1, 7), _cache("softcap", options={**CAUSALLY, "softcap": 2.0})),
    *_by((1, 7), _cache("alibi", options={**CAUSALLY, "alibi": ak.alibi_slopes(2)})),
    *_by((1, 7), _cache("sinks", options={**CAUSALLY, "sinks": np.array([0.5, -1.0], np.float32)})),
    *_by((1, 7), _cache("value", value_dim=8)),
]
TYPES = each_dtype([*_by((1, 5), _cache("types")), *_by((1, 5), _cache("types", heads=4))])
STACK = [
    _cache("stack", layers=3),
    _cache("stack", layers=3, max_length=64),
    _cache("stack", layers=2, heads=4, max_length=40),
]
DECODING = [replace(case, chunk=1) for case in STACK[:2]]  # one query at a time: for paths that take no more
EVERY = [*STACK, *DECODING, *LAYOUTS, *GRID]
PLACED = [
    *_by((1, 7, 0), replace(LAYOUTS[0], label="layout-chunks")),
    *_by((1, 7), _cache("grid-window", 40, {"mask": window(6)}, layout=Ring(6, 8))),
    *_by((8,), _cache("grid-window", 40, {"mask": window(6), "alibi": ak.alibi_slopes(2)}, layout=Ring(6, 8))),
    *_by((5,), _cache("grid-stepped", 40, {"mask": window(3) & chunked(5)}, layout=Ring(3, 5))),
    *_by((1, 7), _cache("grid-chunks", layout=Paged(5), heads=4)),
]
RAGGED = [_cache("ragged", ragged=True, layers=2), _cache("ragged", ragged=True, max_length=60, batch=3, heads=4)]


class TestCacheEquivalence(Checks):
    """C2, C5: prefill, then step by step, is one shot is any chunking."""

    @over([*CHUNKED, *TYPES, *PLACED])
    def test_any_chunking(self, backend: Subject, case: CacheCase) -> None:
        """Appending and attending chunk by chunk gives the rows of attention over everything at once."""
        backend.assert_true(case, _in_chunks(backend, case, _cuts(case)))

    @over([case for case in CHUNKED if case.chunk == 7])
    def test_chunkings_agree(self, backend: Subject, case: CacheCase) -> None:
        """All at once, token by token, and a prefill followed by steps agree with each other."""
        whole = _in_chunks(backend, case, [0, case.keys])
        bound = 2 * backend.tolerance(case).output
        for cuts in ([*range(case.keys + 1)], [0, *range(case.keys // 2, case.keys + 1)]):
            parts = _in_chunks(backend, case, cuts, lse=False)
            assert_within(parts.output, plain(whole.output), bound, what=f"output in {len(cuts) - 1} chunks")

    @over(RAGGED)
    def test_ragged_appends(self, backend: Subject, case: CacheCase) -> None:
        """C2: each sequence takes its own number of tokens; padding on the right is skipped, whatever its bits are."""
        history = History(backend, case)
        for most in (5, 1, 3, 0, 8):
            for layer in history.layers:
                lengths = history.rng.integers(0, most + 1, case.batch)
                beyond = (np.arange(most) >= lengths[:, None])[:, None, :, None]
                key, value = (np.where(beyond, np.array(np.nan, a.dtype), a) for a in history.tokens(most))
                history.append((key, value), lengths, layer=layer)
            history.check()
            history.attend(most or 2)
            history.attend(2, {})

    @over(EVERY)
    def test_appending_nothing_changes_nothing(self, backend: Subject, case: CacheCase) -> None:
        """C2: 0 tokens, into an empty cache too."""
        history = History(backend, case)
        for count in (0, 4, 0, 3, 0):
            history.extend(count)
            history.check()
            history.attend()

    @over(EVERY)
    def test_layers_are_apart(self, backend: Subject, case: CacheCase) -> None:
        """C1: each layer holds and gives its own; the stack reports the least, and ``truncate`` evens it out."""
        history = History(backend, case)
        history.extend(5)
        history.append(history.tokens(1), layer=0)
        history.check()
        history.attend()
        history.truncate(5)
        history.check()
        history.attend()

    @over([*EVERY, *RAGGED])
    def test_any_history(self, backend: Subject, case: CacheCase) -> None:
        """C2-C7: random appends, truncations, drops, reorderings and queries in random order."""
        history = History(backend, case)
        for _ in range(20):
            _random_step(history)
            history.check()
            history.attend()


def _cuts(case: CacheCase) -> list[int]:
    if case.chunk:
        return [*range(0, case.keys, case.chunk), case.keys]
    inner = case.rng("cuts").choice(np.arange(1, case.keys), 6, replace=False)
    return [0, *sorted(inner.tolist()), case.keys]


def _in_chunks(backend: Subject, case: CacheCase, cuts: list[int], *, lse: bool = True) -> Answer:
    """Append and attend from cut to cut; lay the results end to end."""
    history, (query, key, value) = History(backend, case), case.arrays
    outputs, lses = [], []
    for start, stop in pairwise(cuts):
        history.append((key[:, :, start:stop], value[:, :, start:stop]))
        answer = history.ask(query[:, :, start:stop], case.options, lse=lse)
        outputs.append(answer.output)
        lses += [] if answer.lse is None else [answer.lse]
    return Answer(np.concatenate(outputs, axis=2), np.concatenate(lses, axis=2) if lses else None)


def _random_step(history: History) -> None:
    """Do one thing that the capacity allows, or cut off what a ring may not give back."""
    rng, case, reached = history.rng, history.case, history.positions()
    most = min(9, (case.max_length or 64) - int(reached.max()), case.layout.longest_append or 9)
    each = case.batch if case.ragged else None  # a number for each sequence, or one for all
    match rng.choice(["append", "append", "append", "truncate", "drop", "reorder"]):
        case "append":
            count = int(rng.integers(0, most + 1))
            lengths = rng.integers(0, count + 1, each) if case.ragged else None
            for layer in history.layers:
                history.append(history.tokens(count), lengths, layer=layer)
        case "truncate":
            history.truncate(rng.integers(0, (reached if case.ragged else reached.min()) + 1, each))
        case "drop":
            history.drop(rng.integers(0, np.minimum(3, reached if case.ragged else reached.min()) + 1, each))
        case "reorder":
            history.reorder(rng.integers(0, case.batch, case.batch))
