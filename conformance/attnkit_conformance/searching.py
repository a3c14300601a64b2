"""Climb: a search by Hypothesis for the call with the largest error; what lies beyond its bound is shrunk.

Needs ``hypothesis``; import it only to search.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from hypothesis import given, seed, target
from hypothesis import strategies as st

import attnkit as ak
from attnkit_conformance.covering import Choice
from attnkit_conformance.exploring import explorer, last_failure_only
from attnkit_conformance.features import GROUPS, LENGTHS, Sizes, declared_values, fields
from attnkit_conformance.measuring import measuring, note
from attnkit_conformance.samples import Sample
from attnkit_conformance.subject import Subject, codes_of

HEAD_DIMS: Final = (8, 16, 40, 64, 72, 80, 96, 128)
_PATIENCE: Final = 15.0  # seconds of shrinking
_MOST_ROWS: Final = {1: 140, 2: 48}  # H * T by B: the oracle takes row by row


class Climb:
    """A search among calls that have some features, and may have others.

    Parameters
    ----------
    backend
        The backend under test.
    fixed
        Values of the features that every call has.
    enabled
        Features that a call may have beside them.

    Attributes
    ----------
    answered
        How many calls were answered.
    refusal
        The last refusal by a path that was forced, of a call that is not for it.
    """

    def __init__(self, backend: Subject, fixed: Choice, enabled: Iterable[str]) -> None:
        self.backend = backend
        self.values = _values(backend.capabilities, fixed, enabled)
        self.answered = 0
        self.refusal: ak.UnsupportedError | None = None
        self._failed: dict[str, float] = {}  # when each call that fails was first made

    def run(self, number: int, examples: int) -> None:
        """Search from a seed; raises what the smallest call that fails raises."""
        with last_failure_only() as begin:

            def example(case: Sample) -> None:
                begin()
                self._measure(case)

            seed(number)(explorer(examples)(given(self._calls())(example)))()

    def _measure(self, case: Sample) -> None:
        """Ask, compare, and tell Hypothesis how near to its bound the answer came."""
        if self._is_late(case):
            return
        try:
            with measuring() as notes:
                self.backend.assert_true(case, case.call(self.backend), what=f"{case}: ")
        except Exception as error:  # a backend may raise anything
            if not isinstance(error, ak.UnsupportedError) or self.backend.path is None or codes_of(error) != {"path"}:
                self._failed.setdefault(str(case), time.monotonic())
                raise
            self.refusal = error
            return
        finally:
            for comparison in notes:
                note(comparison)
        self.answered += 1
        target(max(comparison.ratio for comparison in notes), label="error in units of tau")

    def _is_late(self, case: Sample) -> bool:
        """Tell whether a failure has been shrunk for long enough; calls that are known to fail go on failing."""
        late = bool(self._failed) and time.monotonic() - min(self._failed.values()) > _PATIENCE
        return late and str(case) not in self._failed

    def _calls(self) -> st.SearchStrategy[Sample]:
        @st.composite
        def call(draw: st.DrawFn) -> Sample:
            choice = {name: draw(st.sampled_from(values)) for name, values in self.values.items()}
            sizes = _sizes(draw, choice, self.backend.capabilities)
            number = draw(st.integers(0, 2**32 - 1))
            return Sample(**fields(choice, sizes, np.random.default_rng(number)), seed=number)

        return call()


def _values(capabilities: ak.Capabilities, fixed: Choice, enabled: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Give the values of each feature to choose from, the simplest first."""
    known, chosen = declared_values(capabilities), frozenset(enabled)
    return {
        name: [fixed[name]] if name in fixed else values if name in chosen else values[:1]
        for name, values in known.items()
    }


def _sizes(draw: st.DrawFn, choice: Choice, capabilities: ak.Capabilities) -> Sizes:
    """Draw sizes at the edges of tiles: ``T`` and ``S`` for themselves, or one query, or as many as keys."""
    batch = draw(st.sampled_from(tuple(_MOST_ROWS)))
    most = _MOST_ROWS[batch] // GROUPS[choice["group"]][0]
    keys = draw(st.sampled_from([n for n in LENGTHS if n <= (capabilities.max_key_length or n)]))
    rows = st.sampled_from([n for n in LENGTHS if n <= most])
    queries = draw(st.one_of(st.just(1), rows, st.just(min(keys, most))))
    head_dims = [size for size in HEAD_DIMS if size in capabilities.head_dims]
    return Sizes(batch, queries, keys, draw(st.sampled_from(head_dims or [capabilities.head_dims.least])))
