"""Requirements fit the contract, the cases that belong to them, and the faults that they must catch."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.checks.harness_checks import LEAST_LONGEST
from attnkit_conformance.items import Item, items
from attnkit_conformance.items import tests as every_test
from attnkit_conformance.requirements import LEVELS, PROMISES, Requirement, areas, find, requirements
from attnkit_conformance.requirements_page import page
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.selftest.plain import Plain, unregistered
from attnkit_conformance.selftest.running import failures

DOCS = Path(__file__).parents[2] / "docs"
RULES = set(re.findall(r"^\*\*([A-Z]\d+)\b", (DOCS / "contract.md").read_text("utf-8"), re.M)) | {"E"}
LATER = {"A15"}  # no way yet to ask for what they are about
GIVEN = {"layouts", "codecs"}  # attnkit's own caches have all of them, and those are what a backend has by default
EVERY = requirements()
ITEMS: dict[str, list[Item]] = defaultdict(list)
for one in items():
    ITEMS[one.requirement.id].append(one)
by_id = pytest.mark.parametrize("requirement", EVERY, ids=lambda requirement: requirement.id)


def needs(case: Case) -> set[str]:
    """Give all that a backend must declare for a case to be answered; a long key axis counts as something."""
    sizes = {"dtypes": "dtype" in case.pinned, "head_dims": "head_dim" in case.pinned}
    sizes["max_key_length"] = case.keys > LEAST_LONGEST
    return {*case.features(), *(name for name, needed in sizes.items() if needed)}


def test_ids_are_unique() -> None:
    assert [name for name, count in Counter(item.id for item in EVERY).items() if count > 1] == []


@by_id
def test_it_is_well_formed(requirement: Requirement) -> None:
    assert re.fullmatch(r"ATTN-[A-Z]+(-[A-Z]+)*-\d{3}", requirement.id)
    assert requirement.level in LEVELS
    assert requirement.since == "1.0"
    assert requirement.title
    assert not requirement.title.endswith(".")
    assert requirement.statement.endswith(".")
    assert areas()[requirement.area] != requirement.area, "the file must say what the area is about"


@by_id
def test_its_rules_are_in_the_contract(requirement: Requirement) -> None:
    assert requirement.rules
    assert set(requirement.rules) <= RULES


def test_every_rule_about_calls_and_caches_has_requirements() -> None:
    wanted = {rule for rule in RULES if rule[0] in "AC"} - LATER
    assert wanted - {rule for requirement in EVERY for rule in requirement.rules} == set()


@by_id
def test_it_has_cases(requirement: Requirement) -> None:
    assert ITEMS[requirement.id]


def test_every_selector_names_a_test_and_every_pattern_a_case() -> None:
    known = {test: [str(case) for case in cases] for test, cases in every_test()}
    for requirement in EVERY:
        for selector in requirement.checks:
            assert selector.test in known, requirement.id
            for pattern in selector.patterns:
                names = known[selector.test]
                assert any(fnmatchcase(name, pattern) for name in names), f"{requirement.id}: {selector.test} {pattern}"


def test_a_case_of_no_requirement_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"TestNothing::test_nothing\[case\] must belong to exactly one"):
        find("TestNothing::test_nothing", "case")


@by_id
def test_when_is_what_its_cases_need(requirement: Requirement) -> None:
    assert set(requirement.capabilities) <= {field.name for field in fields(ak.Capabilities)}
    asked = [needs(item.case) for item in ITEMS[requirement.id]]
    for need, item in zip(asked, ITEMS[requirement.id], strict=True):
        assert set(requirement.needs) <= need, item.id
    common = set.intersection(*asked) - {"max_key_length"}
    assert common <= set(requirement.capabilities), "needed by every case, and so part of when"


def test_every_capability_has_requirements() -> None:
    asked = {name for requirement in EVERY for name in requirement.capabilities}
    assert {field.name for field in fields(ak.Capabilities)} - asked == set()


def test_the_core_needs_nothing() -> None:
    assert {item.id: needs(item.case) for item in items(1) if needs(item.case) - GIVEN} == {}
    assert all(set(item.capabilities) <= PROMISES | GIVEN for item in EVERY if item.level < 2)


def test_every_level_below_quality_has_requirements() -> None:
    assert {requirement.level for requirement in EVERY} >= {0, 1, 2}
    assert all(item.test.startswith("TestHarness::") for item in items(0))


@by_id
def test_it_names_faults_that_exist(requirement: Requirement) -> None:
    assert bool(requirement.mutants) != bool(requirement.no_mutant), "faults, or the reason why there are none"
    assert set(requirement.mutants) <= {mutant.name for mutant in MUTANTS}
    assert len(set(requirement.mutants)) == len(requirement.mutants)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_is_named_where_it_is_caught(mutant) -> None:
    naming = [requirement for requirement in EVERY if mutant.name in requirement.mutants]
    caught_by = {selector.test for requirement in naming for selector in requirement.checks}
    assert any(mutant.killer in (test, test.partition("::")[0]) for test in caught_by), mutant.killer


@pytest.mark.parametrize("level", [0, 1])
def test_a_correct_backend_passes_the_core(level: int) -> None:
    core = [item for item in items(1) if item.requirement.level == level and item.case.queries * item.case.keys < 500]
    assert list(failures(unregistered(Plain()), core)) == []


class Reluctant(Plain):
    """Declares everything, and refuses what every backend must take."""

    def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
        """Refuse calls without options."""
        reasons = super().unsupported(request, path)
        return reasons if reasons or request.lse else [ak.Reason("core", "mask", "anything", "nothing")]


LESS = {
    "short keys": ak.Capabilities(max_key_length=32),
    "no element type": ak.Capabilities(dtypes=frozenset()),
    "an element type of its own": ak.Capabilities(dtypes=frozenset({"float8"}), numerics={"float8": "strict-fp32"}),
    "no head size": ak.Capabilities(head_dims=ak.Sizes(64, 32)),
    "large heads only": ak.Capabilities(head_dims=ak.Sizes(512)),
}


@pytest.mark.parametrize("declared", LESS.values(), ids=list(LESS))
def test_less_than_the_core_fails(declared: ak.Capabilities) -> None:
    backend = type("Less", (Plain,), {"name": "less", "declared": declared})
    found = [item.requirement.id for item, _ in failures(unregistered(backend()), ITEMS["ATTN-CAP-002"])]
    assert found == ["ATTN-CAP-002"]


def test_refusing_the_core_fails() -> None:
    backend = type("Unwilling", (Reluctant,), {"name": "unwilling"})
    declared = ak.Capabilities()
    subject = unregistered(type("Core", (backend,), {"declared": declared})())
    assert {item.id for item, _ in failures(subject, ITEMS["ATTN-MASK-001"])} == {
        item.id for item in ITEMS["ATTN-MASK-001"]
    }


def test_the_page_is_what_the_data_gives() -> None:
    assert (DOCS / "requirements.md").read_text("utf-8") == page(), (
        "run: python -m attnkit_conformance.requirements_page > docs/requirements.md"
    )
