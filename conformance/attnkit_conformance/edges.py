"""Rows and axes without anything in them, and what calls do to their arguments and results (A7, A13, A14).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size, ``E`` value head
size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import array_api_compat
import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_like
from attnkit_conformance.structures import causal, chunked, ids, keep, window
from attnkit_conformance.subject import Subject, lse_dtype

Array = Any


def _empty(label: str, **options: Any) -> Case:
    return Case(label=label, queries=6, keys=9, options=options)


EMPTY_ROWS = [
    Case(label="before-every-key", queries=9, keys=4, options={"mask": causal()}),
    _empty("window-beyond", mask=window(3), query_offset=20),
    _empty("window-before", mask=window(3), query_offset=np.array([-3, 0])),
    _empty("other-chunk", mask=chunked(4), query_offset=14),
    _empty("other-documents", mask=ids((2, 6), (2, 9), count=8)),
    _empty("dense-row", mask=ak.Mask.dense(np.arange(6)[:, None] % 2 == np.zeros(9)) & keep(6, 9)),
    _empty("dense-nothing", mask=ak.Mask.dense(np.zeros((6, 9), np.bool_))),
    _empty("bias-row", bias=np.where(np.arange(6)[:, None] % 2, np.float32(-np.inf), np.zeros((6, 9), np.float32))),
    _empty("no-keys", kv_lengths=np.array([0, 9])),
    _empty("no-keys-causal", kv_lengths=np.array([0, 4]), mask=causal()),
    _empty("padding", query_lengths=np.array([0, 4])),
    _empty("everything", kv_lengths=np.array([0, 4]), query_lengths=np.array([6, 3]), mask=causal() & keep(6, 9)),
]
SINK = {"sinks": np.array([0.7, -np.inf], np.float32)}
EMPTY_AXES = [
    Case(label=label, options=options, **sizes)
    for label, sizes in (("no-batch", {"batch": 0}), ("no-rows", {"queries": 0}), ("no-keys", {"keys": 0}),
                         ("nothing", {"batch": 0, "queries": 0, "keys": 0}))
    for options in ({}, {"mask": causal()}, SINK)
]  # fmt: skip
CALLS = [
    Case(label="plain", queries=5, keys=9),
    Case(label="causal", queries=9, keys=9, options={"mask": causal()}),
    Case(label="decode", queries=1, keys=40),
    Case(label="grouped", heads=4, queries=5, keys=9, options={"mask": window(4)}),
    Case(label="one-key", queries=1, keys=1),
    Case(label="options", queries=5, keys=9, options={"mask": keep(2, 2, 5, 9), "softcap": 3.0,
                                                      "bias": np.ones((2, 2, 5, 9), np.float32), "sinks": np.ones(2, np.float32)}),
    *each_dtype([Case(label="causal", queries=9, keys=9, options={"mask": causal()})]),
]  # fmt: skip


class TestEmpty(Checks):
    """A7: a row without a visible key gives exactly 0, and an LSE of ``-inf``, or of its sink."""

    @over([*EMPTY_ROWS, *(replace(case, options={**case.options, **SINK}) for case in EMPTY_ROWS),
           *each_dtype(EMPTY_ROWS[:1])])  # fmt: skip
    def test_empty_rows(self, backend: Subject, case: Case) -> None:
        """For every way of getting there; the other rows are not disturbed."""
        answer = case.call(backend)
        empty = ~case.truth.problem.shown.any(-1)
        assert_equal(answer.output[empty], np.zeros_like(answer.output[empty]), what="output of the empty rows")
        if answer.lse is not None:
            sinks = np.broadcast_to(case.truth.problem.sinks[:, None], empty.shape)[empty]
            assert_equal(answer.lse[empty], sinks.astype(answer.lse.dtype), what="lse of the empty rows")
        backend.assert_true(case, answer)

    @over([*EMPTY_AXES, *each_dtype(EMPTY_AXES[6:7])])
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
        arrays = [backend.array(array) for array in case.arrays]
        options = backend.options(case.options)
        backend.ask(*arrays, options, lse=backend.capabilities.lse)
        for name, array, original in zip(("query", "key", "value"), arrays, case.arrays, strict=True):
            assert_equal(backend.numpy(array), original, what=f"{name} after the call")
        for name in ("bias", "sinks"):
            if name in options:
                assert_equal(backend.numpy(options[name]), case.options[name], what=f"{name} after the call")

    @over(CALLS)
    def test_results_are_nobody_elses(self, backend: Subject, case: Case) -> None:
        """A result neither aliases an argument nor changes at the next call, and nobody minds if it is overwritten."""
        other = case.holding(*(plain(array)[::-1] for array in case.arrays))
        arrays, options = [backend.array(array) for array in case.arrays], backend.options(case.options)
        first = ak.attention(*arrays, **options, backend=backend.choice)
        kept = backend.numpy(first).copy()
        for array in arrays:
            overwrite(array)
        assert_equal(backend.numpy(first), kept, what="output after its arguments were overwritten")
        before = other.call(backend).output
        assert_equal(backend.numpy(first), kept, what="output after another call")
        overwrite(first)
        assert_equal(other.call(backend).output, before, what="output after an earlier one was overwritten")
        assert_equal(case.call(backend).output, kept, what="output of the first call, made again")

    @over(CALLS[:6])
    def test_strides(self, backend: Subject, case: Case) -> None:
        """Transposed, sliced, offset, reversed and broadcast views mean what they show."""
        for name, view in _VIEWS.items():
            arrays = [view(backend, array) for array in case.arrays]
            answer = backend.ask(*arrays, backend.options(case.options), lse=False)
            backend.assert_true(case, answer, what=f"{name} views: ")

    @over([replace(case, kv_heads=case.heads) for case in CALLS[:2]])
    def test_broadcast_heads(self, backend: Subject, case: Case) -> None:
        """Keys and values of one head, repeated for all heads without a copy (stride 0)."""
        query, key, value = case.arrays
        xp, one = array_api_compat.array_namespace, slice(0, 1)
        shared = [backend.array(array[:, one].copy()) for array in (key, value)]
        wide = [xp(array).broadcast_to(array, full.shape) for array, full in zip(shared, (key, value), strict=True)]
        same = case.holding(query, *(np.broadcast_to(array[:, one], array.shape) for array in (key, value)))
        backend.assert_true(same, backend.ask(backend.array(query), *wide, backend.options(case.options), lse=False))

    @over([replace(case, batch=1) for case in CALLS[:2]])
    def test_ranks(self, backend: Subject, case: Case) -> None:
        """Three axes and two give back as many, and the same numbers."""
        whole = case.call(backend).output
        three = [backend.array(array[0].copy()) for array in case.arrays]
        assert_equal(backend.ask(*three, case.options, lse=False).output, whole[0], what="output of 3-D arrays")
        two = [backend.array(array[0, 0].copy()) for array in case.arrays]
        first = backend.ask(*two, case.options, lse=False).output
        alone = replace(case, heads=1, kv_heads=1).holding(*(array[:, :1] for array in case.arrays))
        backend.assert_true(alone, alone.call(backend))
        assert_equal(first, alone.call(backend).output[0, 0], what="output of 2-D arrays")


class TestDeterminism(Checks):
    """A14: as reproducible as declared, bit for bit."""

    @over(CALLS)
    def test_from_run_to_run(self, backend: Subject, case: Case) -> None:
        """Equal inputs give equal bits, where that is declared."""
        first = case.call(backend).output
        for _ in range(5 if backend.capabilities.deterministic else 0):
            assert_equal(case.call(backend).output, first, what="output of the same call, made again")
        backend.assert_true(case, case.call(backend))

    @over([*CALLS[:4], Case(label="batch", batch=5, queries=3, keys=70)])
    def test_alone_and_in_a_batch(self, backend: Subject, case: Case) -> None:
        """A sequence gives equal bits alone and in a batch where that is declared, else the same within the bound."""
        whole = case.call(backend)
        for b in range(case.batch):
            alone = replace(case, batch=1).holding(*(array[b : b + 1] for array in case.arrays))
            answer = alone.call(backend)
            backend.assert_true(alone, answer)
            if backend.capabilities.batch_invariant:
                assert_equal(answer.output[0], whole.output[b], what=f"output of sequence {b} alone")


def overwrite(array: Array) -> None:
    """Write over an array, where its library allows that."""
    try:
        array[...] = 7
    except (TypeError, ValueError):
        return  # its arrays cannot be written to, so that nobody can notice an alias


def _transposed(backend: Subject, array: np.ndarray[Any, Any]) -> Array:
    return backend.array(np.ascontiguousarray(array.swapaxes(1, 2))).swapaxes(1, 2)


def _sliced(backend: Subject, array: np.ndarray[Any, Any]) -> Array:
    wide = np.full((*array.shape[:2], 2 * array.shape[2], array.shape[3] + 3), 7, array.dtype)
    wide[:, :, ::2, 1:-2] = array
    return backend.array(wide)[:, :, ::2, 1:-2]


def _columns(backend: Subject, array: np.ndarray[Any, Any]) -> Array:
    return backend.array(np.ascontiguousarray(array.swapaxes(2, 3))).swapaxes(2, 3)


def _reversed(backend: Subject, array: np.ndarray[Any, Any]) -> Array:
    flipped = backend.array(np.ascontiguousarray(array[:, :, ::-1]))
    return array_api_compat.array_namespace(flipped).flip(flipped, axis=2)


def _read_only(backend: Subject, array: np.ndarray[Any, Any]) -> Array:
    copy = backend.array(array)
    if isinstance(copy, np.ndarray):
        copy.flags.writeable = False
    return copy


_VIEWS = {
    "transposed": _transposed,
    "sliced": _sliced,
    "column-major": _columns,
    "reversed": _reversed,
    "read-only": _read_only,
}
