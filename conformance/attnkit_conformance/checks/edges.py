"""Rows and axes without anything in them, and what calls do to their arguments and results (A7, A13, A14).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size, ``E`` value head
size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import OTHER_DTYPES, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_like
from attnkit_conformance.harness.views import VIEWS
from attnkit_conformance.structures import CAUSALLY, causal, chunked, ids, keep, window
from attnkit_conformance.subject import Answer, Subject, lse_dtype

SINKS = {"sinks": np.array([0.7, -np.inf], np.float32)}
ODD_ROWS = np.arange(6)[:, None] % 2 == np.ones(9)


def _case(label: str, **options: Any) -> Case:
    return Case(label=label, queries=6, keys=9, options=options)


EMPTY_ROWS = [
    Case(label="before-every-key", queries=9, keys=4, options=CAUSALLY),
    _case("window-beyond", mask=window(3), query_offset=20),
    _case("window-before", mask=window(3), query_offset=np.array([-3, 0])),
    _case("other-chunk", mask=chunked(4), query_offset=14),
    _case("other-documents", mask=ids((2, 6), (2, 9), count=8)),
    _case("dense-row", mask=ak.Mask.dense(ODD_ROWS) & keep(6, 9)),
    _case("dense-nothing", mask=ak.Mask.dense(np.zeros((6, 9), np.bool_))),
    _case("bias-row", bias=np.where(ODD_ROWS, np.float32(0), np.float32(-np.inf))),
    _case("no-keys", kv_lengths=np.array([0, 9])),
    _case("no-keys-causal", kv_lengths=np.array([0, 4]), mask=causal()),
    _case("padding", query_lengths=np.array([0, 4])),
    _case("everything", kv_lengths=np.array([0, 4]), query_lengths=np.array([6, 3]), mask=causal() & keep(6, 9)),
]
SUNK_ROWS = [replace(case, label=f"sunk-{case.label}", options={**case.options, **SINKS}) for case in EMPTY_ROWS]
EMPTY_AXES = [
    replace(case, label=f"{case.label}{kind}", options=options)
    for case in (
        Case(label="no-batch", batch=0),
        Case(label="no-rows", queries=0),
        Case(label="no-keys", keys=0),
        Case(label="nothing", batch=0, queries=0, keys=0),
    )
    for kind, options in (("", {}), ("-causal", CAUSALLY), ("-sunk", SINKS))
]
CALLS = [
    Case(label="plain", queries=5, keys=9),
    Case(label="causal", queries=9, keys=9, options=CAUSALLY),
    Case(label="decode", queries=1, keys=40),
    Case(label="grouped", heads=4, queries=5, keys=9, options={"mask": window(4)}),
    Case(label="one-key", queries=1, keys=1),
    _case("dense", mask=keep(2, 2, 6, 9)),
    _case("terms", softcap=3.0, bias=np.ones((2, 2, 6, 9), np.float32), sinks=np.ones(2, np.float32)),
    *each_dtype([Case(label="causal", queries=9, keys=9, options=CAUSALLY)], OTHER_DTYPES),
]


class TestEmpty(Checks):
    """A7: a row without a visible key gives exactly 0, and an LSE of ``-inf``, or of its sink."""

    @over([*EMPTY_ROWS, *SUNK_ROWS, *each_dtype(EMPTY_ROWS[:1], OTHER_DTYPES)])
    def test_empty_rows(self, backend: Subject, case: Case) -> None:
        """For every way of getting there; the other rows are not disturbed."""
        answer, empty = case.call(backend), ~case.seeing
        assert_equal(answer.output[empty], np.zeros_like(answer.output[empty]), what="output of the empty rows")
        if answer.lse is not None:
            sinks = np.broadcast_to(case.truth.problem.sinks[:, None], empty.shape)[empty]
            assert_equal(answer.lse[empty], sinks.astype(answer.lse.dtype), what="lse of the empty rows")
        backend.assert_true(case, answer)

    @over([*EMPTY_AXES, *each_dtype(EMPTY_AXES[6:7], OTHER_DTYPES)])
    def test_empty_axes(self, backend: Subject, case: Case) -> None:
        """Empty batch, T = 0 and S = 0 are legal and give empty or zero results."""
        answer = case.call(backend)
        assert_like(answer.output, case.output_shape, case.dtype, what="output")
        if answer.lse is not None:
            assert_like(answer.lse, case.output_shape[:3], lse_dtype(case.dtype), what="lse")
        if answer.output.size:
            backend.assert_true(case, answer)


class TestArguments(Checks):
    """A13: arguments are never modified, never aliased, and may be strided in any way."""

    @over(CALLS)
    def test_arguments_stay_as_they_are(self, backend: Subject, case: Case) -> None:
        """After the call every argument holds what it held."""
        arrays, options = [backend.array(array) for array in case.arrays], backend.options(case.options)
        backend.ask(arrays, options, lse=backend.capabilities.lse)
        held = dict(zip(("query", "key", "value"), zip(arrays, case.arrays, strict=True), strict=True))
        held |= {name: (options[name], case.options[name]) for name in ("bias", "sinks") if name in options}
        for name, (array, original) in held.items():
            assert_equal(backend.numpy(array), original, what=f"{name} after the call")

    @over(CALLS)
    def test_results_are_nobody_elses(self, backend: Subject, case: Case) -> None:
        """A result aliases no argument, does not change at the next call, and may be written over."""
        arrays, options = [backend.array(array) for array in case.arrays], backend.options(case.options)
        other = case.holding(plain(array)[::-1] for array in case.arrays)
        (result,) = backend.harness.attention(arrays, options)
        kept = backend.numpy(result).copy()
        for array in arrays:
            backend.harness.write(array, 7)
        assert_equal(backend.numpy(result), kept, what="output after its arguments were written over")
        backend.assert_true(other, other.call(backend))
        assert_equal(backend.numpy(result), kept, what="output after another call")
        backend.harness.write(result, 7)
        for again in (other, case):
            backend.assert_true(again, again.call(backend), what="after an output was written over: ")

    @over(CALLS[:7])
    def test_views(self, backend: Subject, case: Case) -> None:
        """Transposed, sliced, reversed, read-only and broadcast views mean what they show."""
        for how in VIEWS:
            arrays = [backend.harness.view(array, how) for array in case.arrays]
            backend.assert_true(case, backend.ask(arrays, backend.options(case.options)), what=f"{how} views: ")

    @over(CALLS[:3])
    def test_heads_that_are_one(self, backend: Subject, case: Case) -> None:
        """Keys and values of one head, repeated for all heads without a copy (stride 0)."""
        query, key, value = case.arrays
        same = case.holding((query, *(np.broadcast_to(array[:, :1], array.shape) for array in (key, value))))
        wide = [backend.harness.broadcast(array[:, :1].copy(), array.shape) for array in (key, value)]
        backend.assert_true(same, backend.ask([backend.array(query), *wide], backend.options(case.options)))

    @over([replace(case, batch=1) for case in CALLS[:3]])
    def test_ranks(self, backend: Subject, case: Case) -> None:
        """Three axes, and two, give back as many, and the same numbers."""
        for rank in (3, 2):
            one = case if rank == 3 else replace(case, heads=1, kv_heads=1)
            whole = one.holding(array[:, : one.heads] for array in case.arrays)
            dropped = 4 - rank
            arrays = [backend.array(array[(0,) * dropped]) for array in whole.arrays]
            output, lse = backend.ask(arrays, backend.options(case.options))
            assert_like(output, whole.output_shape[dropped:], case.dtype, what=f"output of {rank}-D arrays")
            backend.assert_true(whole, Answer(output[(None,) * dropped], lse))


class TestDeterminism(Checks):
    """A14: as reproducible as declared, bit for bit."""

    @over(CALLS)
    def test_from_run_to_run(self, backend: Subject, case: Case) -> None:
        """Equal inputs give equal bits where that is declared, else the same within the bound."""
        first = case.call(backend)
        for _ in range(5):
            backend.assert_same(case, case.call(backend), first, what="of the same call, made again")

    @over([*CALLS[:4], Case(label="batch", batch=5, queries=3, keys=70)])
    def test_alone_and_in_a_batch(self, backend: Subject, case: Case) -> None:
        """A sequence gives equal bits alone and in a batch where that is declared, else the same within the bound."""
        whole = case.call(backend)
        for b in range(case.batch):
            alone = replace(case, batch=1).holding(array[b : b + 1] for array in case.arrays)
            answer = alone.call(backend)
            backend.assert_true(alone, answer)
            if backend.capabilities.batch_invariant:
                assert_equal(answer.output[0], whole.output[b], what=f"output of sequence {b} alone")
