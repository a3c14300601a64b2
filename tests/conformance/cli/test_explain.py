from __future__ import annotations

import json
from dataclasses import fields

import pytest

import attnkit as ak
from attnkit_conformance.items import items
from attnkit_conformance.requirements import requirements

WINDOWED = next(item for item in items() if item.id.startswith("ATTN-WINDOW-001/TestApplied"))


@pytest.mark.parametrize("requirement", requirements()[:3], ids=str)
def test_a_requirement(conform, requirement) -> None:
    facts = json.loads(conform("explain", requirement.id.lower(), "--json").output)
    assert facts["statement"] == requirement.statement
    assert facts["rules"] == list(requirement.rules)
    assert facts["faults"] == list(requirement.mutants)
    assert len(facts["items"]) == sum(item.requirement is requirement for item in items())


def test_a_long_list_is_cut_for_people_and_whole_in_json(conform) -> None:
    longest = max(requirements(), key=lambda one: sum(item.requirement is one for item in items()))
    output = conform("explain", longest.id).output
    assert "more, see --json" in output
    assert longest.statement in output


def test_an_item(conform) -> None:
    facts = json.loads(conform("explain", WINDOWED.id, "--json").output)
    assert facts["needs"] == ["window"]
    assert facts["undeclared"].startswith("the call must raise UnsupportedError")
    assert facts["undeclared"].endswith(": window")
    assert facts["case"]["sizes"] == "B=2 H=2 K=2 T=5 S=9 D=16 E=16"
    assert "window" in facts["case"]["mask"]
    assert facts["run"].startswith("attnkit conform run BACKEND --only ")
    assert WINDOWED.id in facts["run"]


def test_an_item_by_its_test_alone(conform) -> None:
    assert WINDOWED.requirement.statement in conform("explain", WINDOWED.id.partition("/")[2]).output


@pytest.mark.parametrize("name", [field.name for field in fields(ak.Capabilities)])
def test_a_capability(conform, name) -> None:
    facts = json.loads(conform("explain", name, "--json").output)
    assert facts["meaning"].endswith(".")
    asked = [item for item in items() if name in item.case.features()]
    assert sum(facts["items"].values()) >= len(asked)


def test_a_rule(conform) -> None:
    facts = json.loads(conform("explain", "a9", "--json").output)
    assert [line.partition(":")[0] for line in facts["requirements"]] == [
        requirement.id for requirement in requirements() if "A9" in requirement.rules
    ]


def test_a_slip_is_wrong_use_and_gets_a_hint(conform) -> None:
    result = conform("explain", "softcapp")
    assert result.exit_code == 2
    assert "close: softcap" in result.stderr
