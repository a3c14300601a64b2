"""The cases of company: every two features meet, and nothing that a backend declares is left out."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.checks.combinations import COMBINED, REDUCED, TRIPLES
from attnkit_conformance.features import FEATURES, NEUTRAL, SHAPES, declared
from attnkit_conformance.selftest.correct import MODEST
from attnkit_conformance.selftest.plain import EVERYTHING

KINDS = ("causal", "window", "prefix", "chunked", "documents", "dense")
LIMITED = ak.Capabilities(dtypes=frozenset({"float64", "bfloat16"}), window=True, sinks=True, lengths=True, gqa=True)


def traits(case: Case) -> dict[str, Any]:
    """What a case shows of its features, told from the case itself."""
    kinds = tuple(term[0] for term in case.options["mask"].terms) if "mask" in case.options else ()
    present = {name: name in case.options for name in ("bias", "alibi", "softcap", "sinks")}
    lengths = ("kv_lengths" in case.options, "query_lengths" in case.options)
    offsets = ("query_offset" in case.options, "key_offset" in case.options)
    width = (case.width > case.head_dim) - (case.width < case.head_dim)
    shape = (case.queries, case.keys)
    group = (case.heads, case.kv_heads)
    told = {"kinds": kinds, "lengths": lengths, "offsets": offsets, "width": width, "shape": shape, "group": group}
    return {**present, **told, "lse": case.lse, "dtype": case.dtype, "draw": case.draw}


def pairs_of(cases: list[Case]) -> set[frozenset[tuple[str, object]]]:
    return {frozenset(pair) for case in cases for pair in combinations(traits(case).items(), 2)}


def test_every_two_values_meet_in_a_case() -> None:
    seen = {name: {traits(case)[name] for case in COMBINED} for name in traits(COMBINED[0])}
    assert seen["shape"] == set(SHAPES.values())
    assert seen["draw"] == set(FEATURES["draw"])
    assert seen["dtype"] == set(FEATURES["dtype"])
    del seen["kinds"]  # two features make it; the kinds have a test of their own
    wanted = {
        frozenset(((one, a), (other, b)))
        for one, other in combinations(seen, 2)
        for a, b in product(seen[one], seen[other])
    }
    assert wanted <= pairs_of(COMBINED)


def test_every_two_kinds_of_mask_meet() -> None:
    joined = {frozenset(traits(case)["kinds"]) for case in COMBINED}
    legal = {frozenset(pair) for pair in combinations(KINDS, 2)} - {frozenset(("causal", "prefix"))}
    assert legal <= joined


@pytest.mark.parametrize("names", [*combinations(("group", "lengths", "shape"), 2)], ids="-".join)
def test_every_kind_of_mask_meets_every_two_others_that_decide_visibility(names: tuple[str, str]) -> None:
    assert set(TRIPLES) == {"mask", "group", "lengths", "shape"}
    told = [traits(case) for case in COMBINED]
    values = [{trait[name] for trait in told} for name in names]
    for kind, *others in product(KINDS, *values):
        assert any(kind in trait["kinds"] and [trait[name] for name in names] == others for trait in told)


@pytest.mark.parametrize("cases", [COMBINED, REDUCED], ids=["combined", "reduced"])
def test_names_tell_cases_apart(cases: list[Case]) -> None:
    assert len({str(case) for case in cases}) == len(cases)


@pytest.mark.parametrize(
    "capabilities", [EVERYTHING, LIMITED, *MODEST.values()], ids=["everything", "limited", *MODEST]
)
def test_whatever_is_declared_is_asked_for_in_every_pair(capabilities: ak.Capabilities) -> None:
    reduced = [case.on(capabilities) for case in REDUCED]
    assert [case.undeclared(capabilities) for case in reduced] == [()] * len(reduced)
    values = {name: [value for value in FEATURES[name] if declared(name, value, capabilities)] for name in FEATURES}
    met = {frozenset(pair) for case in reduced for pair in combinations(case.choice.items(), 2)}
    for one, other in combinations(FEATURES, 2):
        for a, b in product(values[one], values[other]):
            assert frozenset(((one, a), (other, b))) in met


def test_each_undeclared_value_is_refused_by_its_name() -> None:
    core = ak.Capabilities()
    refused = {name: [value for value in FEATURES[name] if not declared(name, value, core)] for name in FEATURES}
    assert refused["mask"] == ["window", "prefix", "chunked", "documents", "dense"]
    assert refused["bias"] == ["bias", "hiding-bias"]
    assert refused["dtype"] == ["float64", "bfloat16", "float16"]
    assert refused["draw"] == refused["shape"] == []
    assert all(declared(name, value, core) for name, value in NEUTRAL.items())


def test_cases_are_small() -> None:
    assert max(case.batch * case.heads * case.queries * case.keys for case in COMBINED) < 20_000
