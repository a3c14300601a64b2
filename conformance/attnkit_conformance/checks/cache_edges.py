"""Caches at their edges: full sequences beside others that are not, and steps that are refused (A18, C2, C3).

Axes: ``B`` batch, ``K`` key/value heads, ``T`` new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_model import History
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.cache_equivalence import RAGGED
from attnkit_conformance.structures import CAUSALLY, chunked, prefix, window
from attnkit_conformance.subject import Answer, Subject


@dataclass(frozen=True, kw_only=True, eq=False)
class Step(CacheCase):
    """One step of a cache that holds something; where it is refused, the cache must be as it was."""

    def call(self, subject: Subject) -> Answer:
        """Append a little, attend with the options, and look at the cache whatever comes of it."""
        history = History(subject, self)
        history.extend(5)
        try:
            history.append(history.tokens(2), np.arange(self.batch) if self.ragged else None)
            return history.ask(history.queries(2), self.options)
        finally:
            history.check()


def _step(label: str, options: Mapping[str, Any] = CAUSALLY, **fields: Any) -> Step:
    return Step(label=f"step-{label}", queries=8, keys=8, options=options, **fields)


STEPS = [
    _step("plain", {}),
    _step("window", {"mask": window(3)}),
    _step("prefix", {"mask": prefix(3)}),
    _step("chunked", {"mask": chunked(4)}),
    _step("softcap", {**CAUSALLY, "softcap": 1.0}),
    _step("alibi", {**CAUSALLY, "alibi": np.array([1.0, 0.25], np.float32)}),
    _step("sinks", {**CAUSALLY, "sinks": np.array([0.5, -1.0], np.float32)}),
    _step("ragged", ragged=True),
    _step("grouped", heads=4),
    _step("types", dtype="float32", stored="float16", pinned=("dtype",)),
]
FULL = [replace(RAGGED[0], label=f"full{layers}", batch=3, max_length=8, layers=layers) for layers in (1, 2)]


class TestCacheEdges(Checks):
    """C2, C3: padding is skipped, never wrapped, and a refusal leaves no trace."""

    @over(FULL)
    def test_padding_beside_a_full_sequence(self, backend: Subject, case: CacheCase) -> None:
        """Whichever sequences are full, their first and last tokens stay, though others take new ones."""
        history = History(backend, case)
        for full in ([5, 8, 8], [8, 5, 8], [8, 8, 5]):
            history.reset()
            for layer in history.layers:
                history.append(history.tokens(8), np.array(full), layer=layer)
                history.append(history.tokens(2), np.equal(full, 5).astype(int), layer=layer)
            history.check()
            history.attend(2)

    @over(STEPS)
    def test_refused_or_not_nothing_else_changes(self, backend: Subject, case: Step) -> None:
        """A18, C3: whether a step is answered or refused, the cache holds and counts what was appended."""
        case.call(backend)
