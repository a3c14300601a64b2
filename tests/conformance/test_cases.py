"""The suite's cases: none is vacuous, every capability is asked about, and each has a name of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import numpy as np
import pytest

import attnkit as ak
from attnkit.numerics import numerics_for
from attnkit_conformance.cases import Case, plain
from attnkit_conformance.checks import gradients
from attnkit_conformance.checks.edges import EMPTY_ROWS
from attnkit_conformance.checks.numerics import DISTRIBUTIONS, OPTIONS
from attnkit_conformance.gradient_cases import GradientCase
from attnkit_conformance.items import items
from attnkit_conformance.requirements import PROMISES
from attnkit_conformance.selftest.plain import EVERYTHING
from attnkit_conformance.structures import STRUCTURES

IN_COMPANY = {"COMB", "SEARCH"}  # made of many features on purpose


def all_cases() -> list[Case]:
    return [item.case for item in items()]


def test_names_are_unique_within_a_test() -> None:
    names = Counter(item.id for item in items())
    assert [name for name, count in names.items() if count > 1] == []


def test_every_capability_is_asked_about_and_can_be_lacking() -> None:
    halves = frozenset({"float16", "float32"})
    stored = {"layouts": frozenset({"contiguous"}), "codecs": frozenset({"native"})}
    lacking = ak.Capabilities(dtypes=halves, head_dims=ak.Sizes(16, 64, 16), max_key_length=64, **stored)
    asked = {code for case in all_cases() for code in case.on(lacking).undeclared(lacking)}
    assert asked == {field.name for field in fields(ak.Capabilities)} - PROMISES


def test_most_cases_ask_for_one_thing_at_a_time() -> None:
    core = ak.Capabilities(grad=True)
    alone = [item.case for item in items() if item.requirement.area not in IN_COMPANY]
    lacking = Counter(len(case.on(core).undeclared(core)) for case in alone)
    assert lacking[0] > 150
    assert lacking[1] > 300
    assert lacking[0] + lacking[1] > 0.8 * lacking.total()


@pytest.mark.parametrize(("profile", "dtype"), [("strict-fp32", "float32"), ("fa-16", "bfloat16")])
def test_bounds_are_no_excuse(profile: str, dtype: str) -> None:
    numerics, only = numerics_for(profile, dtype), ak.Capabilities(dtypes=frozenset({dtype}))
    for case in (case.on(only) for case in [*DISTRIBUTIONS, *OPTIONS]):
        if case.dtype == dtype:
            largest = np.abs(plain(case.arrays[2])).max()
            assert case.tolerance(numerics).output.max() < 0.05 * largest, str(case)


def test_gradients_are_there_to_be_seen() -> None:
    declared = [item.case for item in items(2)]
    for case in (case for case in declared if isinstance(case, GradientCase) and case.seeing.any()):
        assert np.abs(case.gradients.value).max() > 1e-3, str(case)
        assert not case.gradients.value[~np.broadcast_to(case.reached["value"], case.arrays[2].shape)].any(), str(case)


@pytest.mark.parametrize(("profile", "dtype"), [("strict-fp32", "float32"), ("fa-16", "bfloat16")])
def test_bounds_of_gradients_are_no_excuse(profile: str, dtype: str) -> None:
    numerics = numerics_for(profile, dtype)
    for case in (case for case in gradients.DISTRIBUTIONS if case.dtype == dtype):
        assert case.gradient_tolerance(numerics).value.max() < 0.05 * np.abs(case.gradients.value).max(), str(case)


def test_structures_show_something() -> None:
    assert all(case.seeing.any() for case in STRUCTURES)


def test_empty_rows_are_empty_and_have_neighbours() -> None:
    assert all(not case.seeing.all() for case in EMPTY_ROWS)
    assert sum(case.seeing.any() for case in EMPTY_ROWS) >= 8


def test_cases_move_to_what_a_backend_declares() -> None:
    case = Case(label="wish", head_dim=16)
    assert case.on(EVERYTHING).head_dim == 16
    assert case.on(ak.Capabilities(head_dims=ak.Sizes(64, 128, 64))).head_dim == 64
    assert case.on(ak.Capabilities(head_dims=ak.Sizes(1, 12, 8))).head_dim == 8
    assert case.on(ak.Capabilities(dtypes=frozenset({"float16"}))).dtype == "float16"
    pinned = Case(label="demand", head_dim=24, dtype="float64", pinned=("head_dim", "dtype"))
    declared = ak.Capabilities(head_dims=ak.Sizes(16, 64, 16))
    assert pinned.on(declared).undeclared(declared) == ("dtypes", "head_dims")
