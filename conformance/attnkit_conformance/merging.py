"""Attention over parts of the keys, merged by their log-sum-exp, is attention over all of them (A10).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_within
from attnkit_conformance.structures import causal, chunked, prefix, window
from attnkit_conformance.subject import Subject

_SPLITS = ((0, 3, 40), (0, 20, 21, 40), (0, 0, 40), (0, 39, 40), (0, 8, 16, 24, 32, 40))


def _part_case(label: str, queries: int = 9, **fields: Any) -> Case:
    options = {"query_offset": 40 - queries, "key_offset": 0, **fields.pop("options", {})}
    return Case(label=label, queries=queries, keys=40, lse=True, options=options, **fields)


SPLIT = [
    _part_case("plain"),
    _part_case("causal", options={"mask": causal()}),
    _part_case("causal-square", queries=40, options={"mask": causal()}),
    _part_case("window", options={"mask": window(7, 2)}),
    _part_case("prefix", options={"mask": prefix(35)}),
    _part_case("chunked", options={"mask": chunked(7)}),
    _part_case("decode", queries=1),
    _part_case("ascending", draw="ascending", options={"mask": causal()}),
    _part_case("grouped", heads=4, options={"mask": causal()}),
    _part_case("sinks", options={"sinks": np.array([0.5, 3.0], np.float32), "mask": causal()}),
    _part_case("alibi", options={"alibi": ak.alibi_slopes(2), "mask": causal()}),
    *each_dtype([_part_case("causal", options={"mask": causal()})], ("float64", "bfloat16", "float16")),
]


class TestMerge(Checks):
    """A10: split the keys anywhere, tell each part where its keys stand, merge: equals whole."""

    @over(SPLIT)
    def test_parts_make_the_whole(self, backend: Subject, case: Case) -> None:
        """Two parts and many, of one key and of none; sinks go to the first part only."""
        for cuts in _SPLITS:
            parts = [_part(case, *cut, first=not n) for n, cut in enumerate(pairwise(cuts))]
            output, lse = ak.merge(*(_ask(backend, part) for part in parts))
            bound = _merged_bound(backend, case, parts)
            assert_within(backend.numpy(output), case.truth.output, bound, what=f"output merged at {cuts}")
            slack = sum(np.nan_to_num(part.tolerance(backend.numerics(case.dtype)).lse) for part in [case, *parts])
            assert_within(backend.numpy(lse), case.truth.lse, slack, what=f"lse merged at {cuts}")

    @over(SPLIT[:2])
    def test_order_and_empty_parts_leave_no_trace(self, backend: Subject, case: Case) -> None:
        """Commutative, and neutral for a part without keys, bit for bit."""
        first, second, nothing = (_ask(backend, _part(case, *cut)) for cut in ((0, 17), (17, 40), (40, 40)))
        merged = _numpy(backend, ak.merge(first, second))
        orders = ((second, first), (nothing, first, second), (second, nothing, first), (first, second, nothing, nothing))
        for order in orders:
            for actual, expected in zip(_numpy(backend, ak.merge(*order)), merged, strict=True):
                assert_equal(actual, expected, what="merge in another order")
        for actual, expected in zip(_numpy(backend, ak.merge(nothing, first)), _numpy(backend, first), strict=True):
            assert_equal(actual, expected, what="merge with an empty part")


def _part(case: Case, start: int, stop: int, *, first: bool = True) -> Case:
    """Give the case over keys ``[start, stop)``; sinks go to the first part."""
    query, key, value = case.arrays
    options = {**case.options, "key_offset": start}
    if not first:
        options.pop("sinks", None)
    part = replace(case, keys=stop - start, options=options)
    return part.holding(query, key[:, :, start:stop], value[:, :, start:stop])


def _ask(backend: Subject, part: Case) -> tuple[Any, Any]:
    """Give output and LSE as arrays of the backend."""
    arrays = [backend.array(array) for array in part.arrays]
    result = ak.attention_with_lse(*arrays, **backend.options(part.options), backend=backend.choice)
    return result.output, result.lse


def _numpy(backend: Subject, result: tuple[Any, Any]) -> tuple[Array, Array]:
    return backend.numpy(result[0]), backend.numpy(result[1])


def _merged_bound(backend: Subject, case: Case, parts: list[Case]) -> Array:
    """Bound the merged output: ``tau + sum_i w_i (tau_i + 2 tau_L_i |o_i - o|)``, ``w_i`` the share of a part."""
    numerics = backend.numerics(case.dtype)
    bound = case.tolerance(numerics).output.copy()
    top = np.where(np.isfinite(case.truth.lse), case.truth.lse, 0)
    for part in parts:
        own = part.tolerance(numerics)
        share = np.exp(part.truth.lse - top)[..., None]
        bound += share * (own.output + 2 * own.lse[..., None] * np.abs(part.truth.output - plain(case.truth.output)))
    return bound
