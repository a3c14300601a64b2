"""A case becomes smaller for as long as it fails in the same way, and only where its test still means something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.items import Item, items
from attnkit_conformance.repro.attempt import Bench, Budget, Failure
from attnkit_conformance.repro.cropping import cropped_options
from attnkit_conformance.repro.shrinking import pinned, shrink
from attnkit_conformance.selftest.plain import Plain
from attnkit_conformance.subject import Subject

ALL = {"mask": ak.Mask.causal(), "softcap": 2.0, "scale": 0.5, "bias": np.ones((2, 1, 7, 1), np.float32)}
CASE = Case(label="large", batch=2, heads=4, queries=7, keys=23, head_dim=16, draw="peaked", options=ALL)


def item(case: Case, test: str = "TestApplied::test_applied_or_refused") -> Item:
    return replace(next(found for found in items() if found.test == test), case=case)


def shrunk(case: Case, broken: Callable[..., bool], seconds: float = 30.0) -> Failure:
    """Shrink a case on a backend that is wrong where ``broken`` says so of query, key, value, operands and request."""

    class Broken(Plain):
        def attention(self, *arguments: Any) -> ak.AttentionOutput:
            result = super().attention(*arguments)
            return result._replace(output=result.output + 1) if broken(*arguments) else result

    def make() -> Subject:
        return Subject(Harness("broken", Broken(), Broken()))

    bench = Bench(item(case), make)
    failure = bench.attempt(pinned(case))
    assert failure is not None
    return shrink(failure, make().capabilities, bench, Budget(seconds))


def sizes(case: Case) -> tuple[int, ...]:
    return case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.head_dim


def test_everything_goes_that_does_not_matter() -> None:
    small = shrunk(CASE, lambda *_: True).case
    assert sizes(small) == (1, 1, 1, 1, 1, 1)
    assert small.options == {}
    assert small.draw == "normal"
    assert not any(array.any() for array in small.arrays)


def test_what_matters_stays() -> None:
    small = shrunk(CASE, lambda q, k, v, operands, request: request.softcap and q.shape[1] > 2 and k.shape[2] > 8).case
    assert small.options == {"softcap": 2.0}
    assert (small.heads, small.kv_heads, small.keys, small.queries, small.batch) == (3, 1, 9, 1, 1)


def test_numbers_that_matter_stay() -> None:
    case = replace(CASE, options={})
    small = shrunk(case, lambda q, k, v, operands, request: (np.abs(v) > 0.4).any()).case
    query, key, value = small.arrays
    assert not query.any()
    assert not key.any()
    assert np.abs(value).tolist() == [[[[1.0]]]]


def test_an_undeclared_size_is_not_tried() -> None:
    class Wide(Plain):
        declared = replace(Plain.declared, head_dims=ak.Sizes(8, 64, 8))

        def attention(self, *arguments: Any) -> ak.AttentionOutput:
            result = super().attention(*arguments)
            return result._replace(output=result.output + 1)

    bench = Bench(item(CASE), lambda: Subject(Harness("wide", Wide(), Wide())))
    failure = bench.attempt(pinned(CASE))
    assert failure is not None
    assert shrink(failure, Wide.declared, bench, Budget(30)).case.head_dim == 8


def test_another_failure_is_not_the_same() -> None:
    def broken(query: Any, *_: Any) -> bool:
        if query.shape[0] == 1:
            raise ValueError("batch of one")
        return True

    small = shrunk(CASE, broken)
    assert small.case.batch == 2
    assert type(small.error).__name__ == "Mismatch"


def test_a_case_that_its_test_does_not_fit_is_not_taken() -> None:
    """Without its offset, a part of the keys is no part of the whole any more, and a correct backend fails as well."""
    merging = "TestMerge::test_parts_make_the_whole"
    case = next(found.case for found in items() if found.test == merging and "causal-b2" in str(found.case))
    bench = Bench(item(case, merging), lambda: Subject(Harness("plain", Plain(), Plain())))
    assert bench.is_fair(case)
    assert not bench.is_fair(replace(case, options={"mask": ak.Mask.causal()}))


def test_a_pinned_case_keeps_its_numbers_and_its_original_does_not_change() -> None:
    case = CASE.holding(np.ones_like(array) for array in CASE.arrays)
    same = pinned(case)
    assert same.on(ak.Capabilities(dtypes=frozenset({"float64"}))) is same
    assert same.arrays is case.arrays
    assert case.on(ak.Capabilities(dtypes=frozenset({"float64"}))).dtype == "float64"


@pytest.mark.parametrize("tries", [0, 5])
def test_a_budget_ends(tries: int) -> None:
    budget = Budget(60, tries)
    assert [budget.spend() for _ in range(7)] == [True] * tries + [False] * (7 - tries)


def test_options_are_cut_to_size() -> None:
    ids = np.arange(10).reshape(2, 5)
    options = {
        "mask": ak.Mask.documents(ids[0], ids) & ak.Mask.dense(np.ones((2, 1, 5, 5), bool)) & ak.Mask.window(2),
        "bias": np.ones((5, 1), np.float32),
        "alibi": np.ones((2, 4), np.float32),
        "sinks": np.ones(4, np.float32),
        "kv_lengths": np.array([5, 2]),
        "query_lengths": 4,
        "query_offset": np.array([7, 8]),
        "scale": 0.5,
    }
    cut = cropped_options(options, Case(label="small", batch=1, heads=2, queries=3, keys=4))
    window, documents, dense = cut["mask"].terms
    assert window == ("window", 2, 0)
    assert (documents[1].shape, documents[2].shape, dense[1].shape) == ((3,), (1, 4), (1, 1, 3, 4))
    assert (cut["bias"].shape, cut["alibi"].shape, cut["sinks"].shape) == ((3, 1), (1, 2), (2,))
    assert (cut["kv_lengths"].tolist(), cut["query_lengths"], cut["query_offset"].tolist()) == ([4], 3, [7])
    assert cut["scale"] == 0.5
