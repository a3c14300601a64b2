"""Sequences laid end to end: each gives what it gives alone, and none sees another (A3, A7, A8, E).

Axes: ``N`` packed queries, ``M`` packed keys, ``B`` sequences, ``H`` query heads, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import OTHER_DTYPES, Array, Arrays, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_like, assert_raises, assert_within
from attnkit_conformance.structures import CAUSALLY, chunked, ids, keep, prefix, window
from attnkit_conformance.subject import Answer, Subject


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedCase(Case):
    """Sequences of several lengths; ``batch`` is 1, ``queries`` and ``keys`` count the tokens of all of them.

    Attributes
    ----------
    query_counts, key_counts
        Tokens of each sequence.
    """

    query_counts: tuple[int, ...] = ()
    key_counts: tuple[int, ...] = ()

    @property
    def cumulative(self) -> tuple[Array, Array]:
        """Cumulative lengths of queries and keys, ``[B + 1]``."""
        starts = (np.cumsum([0, *counts]) for counts in (self.query_counts, self.key_counts))
        query, key = starts
        return query, key

    @cached_property
    def alone(self) -> list[Case]:
        """Each sequence as a call of its own."""
        return [self._alone(*cuts) for cuts in self.cuts()]

    def cuts(self) -> Iterator[tuple[slice, slice]]:
        """Give where the queries and the keys of each sequence lie."""
        query, key = self.cumulative
        for b in range(len(self.query_counts)):
            yield slice(query[b], query[b + 1]), slice(key[b], key[b + 1])

    def undeclared(self, capabilities: ak.Capabilities) -> tuple[str, ...]:
        """Give the fields that say no to the first sequence that is refused; each is a call of its own."""
        refused = (missing for case in self.alone if (missing := case.undeclared(capabilities)))
        return next(refused, ()) if self.alone else super().undeclared(capabilities)

    def call(self, subject: Subject) -> Answer:
        """Ask a backend for all sequences at once: ``[1, H, N, E]``, without the log-sum-exp."""
        query, key = self.cumulative
        return self.ask(subject, query, key)

    def ask(self, subject: Subject, query: Array, key: Array, **limits: Any) -> Answer:
        """Ask with any cumulative lengths."""
        arrays = [subject.array(np.ascontiguousarray(array[0].swapaxes(0, 1))) for array in self.arrays]
        options = subject.options({**self.options, **limits})
        output = subject.numpy(subject.harness.packed([*arrays, query, key], options))
        return Answer(output.swapaxes(0, 1)[None], None)

    def _alone(self, queries: slice, keys: slice) -> Case:
        query, key, value = self.arrays
        shared = replace(self, label="alone", queries=queries.stop - queries.start, keys=keys.stop - keys.start)
        case = Case(**{item.name: getattr(shared, item.name) for item in fields(Case)})
        return case.holding((query[:, :, queries], key[:, :, keys], value[:, :, keys]))


def _packed(
    label: str, query_counts: tuple[int, ...], key_counts: tuple[int, ...] = (), *, sizes: Any = None, **options: Any
) -> PackedCase:
    key_counts = key_counts or query_counts
    totals = {"queries": sum(query_counts), "keys": sum(key_counts)}
    given: dict[str, Any] = {"label": f"packed-{label}", "batch": 1, "options": options, **totals, **(sizes or {})}
    return PackedCase(query_counts=query_counts, key_counts=key_counts, **given)


GROUPED = {"heads": 4, "kv_heads": 2}
SEQUENCES = [
    _packed("plain", (3, 5, 1)),
    _packed("causal", (3, 5, 1, 17), **CAUSALLY),
    _packed("decode", (1, 1, 1), (9, 40, 1), **CAUSALLY),
    _packed("chunk", (4, 2, 9), (9, 2, 4), **CAUSALLY),
    _packed("one", (7,)),
    _packed("long", (130, 2, 70), sizes={"heads": 1, "kv_heads": 1}, **CAUSALLY),
    _packed("grouped", (3, 5), sizes=GROUPED, **CAUSALLY),
    _packed("window", (9, 13), mask=window(4)),
    _packed("prefix", (9, 13), mask=prefix(3)),
    _packed("chunked", (9, 13), mask=chunked(4)),
    _packed("alibi", (5, 9), alibi=np.array([1.0, 0.25], np.float32), **CAUSALLY),
    _packed("sinks", (5, 9), sinks=np.array([0.5, -1.0], np.float32)),
    _packed("softcap", (5, 9), softcap=1.5, scale=0.7),
    _packed("value", (5, 9), sizes={"value_dim": 8}),
    *each_dtype([_packed("types", (3, 5, 1), sizes=GROUPED, **CAUSALLY)], OTHER_DTYPES),
]
EMPTY = [
    _packed("no-rows", (0, 4, 0), (3, 5, 2), **CAUSALLY),
    _packed("no-keys", (3, 4, 2), (0, 5, 0)),
    _packed("no-tokens", (0, 4, 0, 0, 1), **CAUSALLY),
    _packed("only-empty", (2, 3), (0, 0)),
]
NOTHING = [_packed("no-sequences", ()), _packed("no-tokens-at-all", (0, 0))]
LEGAL = _packed("legal", (3, 5), (4, 6))


class TestPacked(Checks):
    """A3: positions, masks and lengths count inside each sequence."""

    @over([*SEQUENCES, *EMPTY])
    def test_each_sequence_as_alone(self, backend: Subject, case: PackedCase) -> None:
        """The output of each sequence is that of attention over its own tokens; an empty one takes no room."""
        output = case.call(backend).output
        assert_like(output, case.output_shape, case.dtype, what="packed output")
        for b, (alone, (queries, _)) in enumerate(zip(case.alone, case.cuts(), strict=True)):
            if alone.queries:
                backend.assert_true(alone, Answer(output[:, :, queries], None), what=f"sequence {b}: ")

    @over(SEQUENCES[:8])
    def test_neighbours_leave_no_trace(self, backend: Subject, case: PackedCase) -> None:
        """No bit of a sequence changes with what stands in the others, NaN and infinity too."""
        before = case.call(backend).output
        for b, (queries, keys) in enumerate(case.cuts()):
            for fill in (0.0, 1e4, np.nan, -np.inf):
                with np.errstate(all="ignore"):
                    after = case.holding(_filled(case, queries, keys, fill)).call(backend).output
                one, other = after[:, :, queries], before[:, :, queries]
                _assert_same(backend, one, other, case.alone[b : b + 1], f"sequence {b} with {fill} in the others")

    @over(NOTHING)
    def test_nothing_at_all(self, backend: Subject, case: PackedCase) -> None:
        """A7: no sequences, and sequences without tokens, give an empty result."""
        assert_like(case.call(backend).output, case.output_shape, case.dtype, what="packed output")

    @over([LEGAL])
    def test_limits(self, backend: Subject, case: PackedCase) -> None:
        """E: the longest lengths that a caller promises change nothing where they hold, and raise where they do not."""
        (query, key), plainly = case.cumulative, case.call(backend).output
        for limits in ({"max_q": 5, "max_k": 6}, {"max_q": 100}, {"max_k": 6}):
            output = case.ask(backend, query, key, **limits).output
            _assert_same(backend, output, plainly, case.alone, f"output with {limits}")
        for short in ({"max_q": 4}, {"max_k": 5}):
            assert_raises(ak.ShapeError, partial(case.ask, backend, query, key, **short))

    @over([LEGAL])
    def test_what_does_not_fit(self, backend: Subject, case: PackedCase) -> None:
        """E: cumulative lengths that fall, end elsewhere or do not belong together; masks that are not of positions."""
        query, key = case.cumulative
        for kind, cu_q, cu_k in (
            (ak.ShapeError, np.array([0, 5, 3, 8]), np.array([0, 4, 4, 10])),
            (ak.ShapeError, query[:-1], key[:-1]),
            (ak.ShapeError, query + 1, key),
            (ak.ShapeError, query, np.array([0, 4, 11])),
            (ak.ShapeError, query, np.array([0, 2, 4, 10])),
            (ak.ShapeError, query[None], key),
            (ak.ShapeError, query[:0], key[:0]),
            (ak.DTypeError, query.astype(np.float32), key),
        ):
            assert_raises(kind, partial(case.ask, backend, cu_q, cu_k))
        for mask in (ids((8,), (10,)), keep(8, 10)):
            masked = replace(case, options={"mask": mask})
            assert_raises(ak.ShapeError, partial(masked.call, backend))


def _filled(case: PackedCase, queries: slice, keys: slice, fill: float) -> Arrays:
    """Give the arrays with all but one sequence filled."""
    query, key, value = (np.full(array.shape, fill) for array in case.arrays)
    for array, original, cut in zip((query, key, value), case.arrays, (queries, keys, keys), strict=True):
        array[:, :, cut] = original[:, :, cut]
    return query, key, value


def _assert_same(backend: Subject, one: Array, other: Array, sequences: list[Case], what: str) -> None:
    """Check that outputs are the same bits, or within the bound of both where that is not declared."""
    if backend.capabilities.deterministic:
        assert_equal(one, other, what=what)
        return
    bounds = [backend.tolerance(case).output for case in sequences]
    assert_within(one, plain(other), 2 * np.concatenate(bounds, axis=2), what=what)
