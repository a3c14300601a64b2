"""Cases of caches: their names stand in reports, and what is not declared of them is refused with its code."""

from __future__ import annotations

from dataclasses import replace

import pytest

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged, Ring
from attnkit_conformance.checks.cache_grid import GRID, LAYOUTS
from attnkit_conformance.items import items
from attnkit_conformance.runner import run_item
from attnkit_conformance.selftest.plain import EVERYTHING, Plain, unregistered
from attnkit_conformance.structures import CAUSALLY

PLAIN = CacheCase(label="plain", options=CAUSALLY)
LESS = {
    "layouts": replace(EVERYTHING, layouts=frozenset({"contiguous"})),
    "codecs": replace(EVERYTHING, codecs=frozenset({"native"})),
}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "growing-byany"),
        ({"max_length": 12, "chunk": 3}, "fixed12-by3"),
        ({"stored": "float16", "ragged": True}, "growingfloat16-ragged-byany"),
        ({"layout": Ring(6, 4, 2)}, "ring6a4p2-byany"),
        ({"layout": Paged(4), "max_length": 12}, "paged4fixed12-byany"),
        ({"codecs": ("int8", "int8")}, "growing-int8-byany"),
        ({"codecs": ("native", "int4/8")}, "growing-native-int4b8-byany"),
    ],
)
def test_names(fields: dict[str, object], name: str) -> None:
    assert str(replace(PLAIN, **fields)) == f"plain-b2h2k2t6s6d16-float32-{name}"  # type: ignore[arg-type]


def test_names_tell_the_grid_apart() -> None:
    every = [*LAYOUTS, *GRID]
    assert len({str(case) for case in every}) == len(every)


def test_the_grid_holds_every_layout_and_codec() -> None:
    every = [*LAYOUTS, *GRID]
    assert {case.layout.name for case in every} == ak.Capabilities().layouts
    assert {case.codec(half).kind for case in every for half in range(2)} == ak.Capabilities().codecs
    assert {case.dtype for case in every} == {"float16", "bfloat16", "float32", "float64"}


def test_everything_that_cannot_be_stored_is_told_at_once() -> None:
    case = CacheCase(label="several", layout=Paged(4), codecs=("int8", "fp8"), dtype="float64", heads=4)
    declared = ak.Capabilities(layouts=frozenset({"ring"}), codecs=frozenset({"native", "int8"}))
    assert case.undeclared(declared) == ("dtypes", "layouts", "codecs")
    assert case.undeclared(replace(EVERYTHING, gqa=False)) == ("gqa",)


def test_a_ring_needs_positions_and_pinned_tokens_are_merged() -> None:
    assert set(replace(PLAIN, layout=Ring(6)).features()) == {"layouts", "offsets"}
    assert set(replace(PLAIN, layout=Ring(6, pinned=1)).features()) == {"layouts", "offsets", "lse"}


@pytest.mark.parametrize("code", sorted(LESS))
def test_what_is_not_declared_is_refused(code: str) -> None:
    backend = type("Less", (Plain,), {"name": "less", "declared": LESS[code]})
    subject = unregistered(backend())
    outcomes = set()
    for item in items(1):
        if item.requirement.id == "ATTN-CACHE-LAYOUT-001" and code in item.case.features():
            result = run_item(item, subject)
            assert result.status == "PASS", result.message
            outcomes.add(result.outcome)
    assert outcomes == {f"refused {code}"}


@pytest.mark.parametrize("code", sorted(LESS))
def test_what_is_taken_though_it_is_not_declared_fails(code: str) -> None:
    class Taking(Plain):
        name = "taking"

        def make_cache(self, config: ak.KVCacheConfig, choice: object) -> ak.KVCache | None:
            del choice
            return ak.make_cache(config, backend=Plain())

    subject = unregistered(Taking())
    subject.description = subject.description._replace(capabilities=LESS[code])
    item = next(item for item in items(1) if item.test.startswith("TestForks::") and code in item.case.features())
    result = run_item(item, subject)
    assert result.status == "FAIL"
    assert f"{code}: not declared, yet the call gave a result" in result.message


@pytest.mark.parametrize("code", ["offsets", "lse", "lengths"])
def test_what_a_ring_needs_is_refused_when_it_is_asked(code: str) -> None:
    backend = type("Less", (Plain,), {"name": "less", "declared": replace(EVERYTHING, **{code: False})})
    subject = unregistered(backend())
    for item in items(2):
        if item.test == "TestRing::test_each_sequence_evicts_its_own" and code in item.case.features():
            result = run_item(item, subject)
            assert (result.status, result.outcome) == ("PASS", f"refused {code}"), result.message
