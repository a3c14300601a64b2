"""Attention over parts of the keys, merged by their log-sum-exp, is attention over all of them (A10).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import OTHER_DTYPES, Array, Case, each_dtype
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_within
from attnkit_conformance.structures import CAUSALLY, chunked, prefix, window
from attnkit_conformance.subject import Subject

_KEYS = 40
_CUTS = ((0, 3, 40), (0, 20, 21, 40), (0, 0, 40), (0, 39, 40), (0, 8, 16, 24, 32, 40))
Pair = tuple[Any, Any]


def _case(label: str, queries: int = 9, options: Any = None, **fields: Any) -> Case:
    placed = {"query_offset": _KEYS - queries, "key_offset": 0, **(options or {})}
    return Case(label=label, queries=queries, keys=_KEYS, lse=True, options=placed, **fields)


SPLIT = [
    _case("plain"),
    _case("causal", options=CAUSALLY),
    _case("causal-square", queries=_KEYS, options=CAUSALLY),
    _case("window", options={"mask": window(7, 2)}),
    _case("prefix", options={"mask": prefix(35)}),
    _case("chunked", options={"mask": chunked(7)}),
    _case("decode", queries=1),
    _case("rising", draw="ascending", options=CAUSALLY),
    _case("grouped", heads=4, options=CAUSALLY),
    _case("sinks", options={"sinks": np.array([0.5, 3.0], np.float32), **CAUSALLY}),
    _case("alibi", options={"alibi": ak.alibi_slopes(2), **CAUSALLY}),
    *each_dtype([_case("causal", options=CAUSALLY)], OTHER_DTYPES),
]


class TestMerge(Checks):
    """A10: split the keys anywhere, tell each part where its keys stand, merge: equals whole."""

    @over(SPLIT)
    def test_parts_make_the_whole(self, backend: Subject, case: Case) -> None:
        """Two parts and many, of one key and of none; sinks go to the first part only."""
        for cuts in _CUTS:
            parts = [_part(case, *cut, first=not number) for number, cut in enumerate(pairwise(cuts))]
            output, lse = _merge(backend, *(_ask(backend, part) for part in parts))
            output_bound, lse_bound = _bounds(backend, case, parts)
            assert_within(output, case.truth.output, output_bound, what=f"output merged at {cuts}")
            assert_within(lse, case.truth.lse, lse_bound, what=f"lse merged at {cuts}")

    @over(SPLIT[:2])
    def test_order_and_empty_parts_leave_no_trace(self, backend: Subject, case: Case) -> None:
        """Commutative, and neutral for a part without keys, bit for bit."""
        first, second, nothing = (_ask(backend, _part(case, *cut)) for cut in ((0, 17), (17, _KEYS), (_KEYS, _KEYS)))
        for order in ((second, first), (nothing, first, second), (second, nothing, first, nothing)):
            _assert_equal(_merge(backend, *order), _merge(backend, first, second))
        _assert_equal(_merge(backend, nothing, first), (backend.numpy(first[0]), backend.numpy(first[1])))


def _part(case: Case, start: int, stop: int, *, first: bool = True) -> Case:
    """Give the case over keys ``[start, stop)``; sinks go to the first part."""
    query, key, value = case.arrays
    options = {name: value for name, value in case.options.items() if first or name != "sinks"}
    part = replace(case, keys=stop - start, options={**options, "key_offset": start})
    return part.holding((query, key[:, :, start:stop], value[:, :, start:stop]))


def _ask(backend: Subject, part: Case) -> Pair:
    """Give output and LSE as arrays of the backend."""
    arrays = [backend.array(array) for array in part.arrays]
    output, lse = backend.harness.attention(arrays, backend.options(part.options), lse=True)
    return output, lse


def _merge(backend: Subject, *parts: Pair) -> tuple[Array, Array]:
    output, lse = backend.harness.merge(parts)
    return backend.numpy(output), backend.numpy(lse)


def _assert_equal(merged: tuple[Array, Array], expected: tuple[Array, Array]) -> None:
    for name, actual, right in zip(("output", "lse"), merged, expected, strict=True):
        assert_equal(actual, right, what=f"{name} of a merge that must leave no trace")


def _bounds(backend: Subject, case: Case, parts: list[Case]) -> tuple[Array, Array]:
    """Bound the merged output and LSE.

    With the share ``w_i = exp(L_i - L)`` of a part, the output may be off by its own ``tau``, by the errors of the
    parts ``sum_i w_i tau_i``, and by those of their shares, ``sum_i 2 w_i tau_L_i |o_i - o|``.
    """
    numerics = backend.numerics(case.dtype)
    whole = case.tolerance(numerics)
    output, lse = whole.output.copy(), whole.lse.copy()
    top = np.where(np.isfinite(case.truth.lse), case.truth.lse, 0)
    for part in parts:
        own, share = part.tolerance(numerics), np.exp(part.truth.lse - top)[..., None]
        output += share * (own.output + 2 * own.lse[..., None] * np.abs(part.truth.output - case.truth.output))
        lse += own.lse
    return output, lse
