"""The mutation gate on what requirements.toml names, and that it would tell if something got through."""

from __future__ import annotations

import pytest

from attnkit_conformance.requirements import Requirement, requirements
from attnkit_conformance.selftest.gate import (
    Kill,
    KillMatrix,
    cheapest_first,
    first_failure,
    kill,
    kill_matrix,
    level_by_level,
)
from attnkit_conformance.selftest.mutants import BY_NAME
from attnkit_conformance.selftest.plain import Plain, unregistered

CRASHING = {  # whose fault it is to raise
    "no_keys_crash",
    "refused_by_another_error",
    "ring_never_goes_back",
    "pages_never_given_back",
    "fork_copies_every_page",
    "offload_keeps_pages",
}
COMPARED = ("Mismatch: ", "AssertionError: ", "UnsupportedError: ")
NAMING = [requirement for requirement in requirements() if requirement.mutants]


@pytest.mark.parametrize("requirement", NAMING, ids=lambda requirement: requirement.id)
def test_it_catches_every_fault_that_it_names(requirement: Requirement) -> None:
    matrix = kill_matrix(only=[requirement.id])
    assert {one.mutant for one in matrix.kills} == set(requirement.mutants)
    assert [one.mutant for one in matrix.kills if not one.killed] == []
    strange = [one for one in matrix.kills if one.mutant not in CRASHING and not one.message.startswith(COMPARED)]
    assert strange == [], "a fault that breaks in another way than it should says nothing about the suite"


def test_every_fault_is_named() -> None:
    named = {name for requirement in requirements() for name in requirement.mutants}
    assert set(BY_NAME) - named == set(), "faults that no requirement names"
    assert named - set(BY_NAME) == set(), "names of no fault"


def test_every_requirement_names_a_fault() -> None:
    assert [requirement.id for requirement in requirements() if not requirement.mutants] == []


def test_a_requirement_does_not_kill_what_it_is_not_about() -> None:
    found = kill(BY_NAME["sink_ignored"], "ATTN-CAUSAL-001")
    assert not found.killed
    assert found.message == ""
    assert found.tried == len(cheapest_first("ATTN-CAUSAL-001"))


def test_a_kill_says_what_failed() -> None:
    found = kill(BY_NAME["causal_strict"], "ATTN-CAUSAL-001")
    assert found.item.startswith("ATTN-CAUSAL-001/Test")
    assert "Mismatch" in found.message
    assert 1 <= found.tried <= len(cheapest_first("ATTN-CAUSAL-001"))


def test_a_correct_backend_survives() -> None:
    tried, item, error = first_failure(unregistered(Plain()), cheapest_first("ATTN-CAUSAL-001"))
    assert (item, error) == (None, None)
    assert tried == len(cheapest_first("ATTN-CAUSAL-001"))


def test_items_are_taken_level_by_level_and_none_is_lost() -> None:
    levels = [item.requirement.level for item in level_by_level()]
    assert levels == sorted(levels)
    assert len({item.id for item in level_by_level()}) == len(levels)
    assert {item.requirement.level for item in level_by_level(1)} == {0, 1}


def test_what_is_wrong_is_said() -> None:
    kills = (
        Kill("ATTN-A-001", "caught", "ATTN-A-001/Test::test[case]", "Mismatch: far off", 3, 0.1),
        Kill("ATTN-A-001", "missed", "", "", 9, 0.1),
        Kill("ATTN-B-001", "caught", "", "", 2, 0.1),
    )
    named = frozenset({("ATTN-A-001", "caught"), ("ATTN-A-001", "missed"), ("ATTN-A-001", "misspelt")})
    matrix = KillMatrix(kills, named, ("caught", "missed", "forgotten"))
    assert not matrix.ok
    assert matrix.problems() == [
        "missed survives ATTN-A-001 (9 items)",
        "forgotten is named by no requirement",
        "misspelt: there is no such fault",
    ]
    assert matrix.table() == {"caught": {"ATTN-A-001": True, "ATTN-B-001": False}, "missed": {"ATTN-A-001": False}}
    assert list(matrix.lines())[:3] == [
        "caught: killed by ATTN-A-001",
        "missed: killed by none; SURVIVES ATTN-A-001",
        "3 faults, 3 named pairs; 1 of 3 pairs that ran are killed",
    ]
    assert KillMatrix(kills[:1], frozenset({("ATTN-A-001", "caught")}), ("caught",)).ok


def test_progress_is_told_by_requirement() -> None:
    told: list[str] = []
    matrix = kill_matrix(only=["causal_strict"], on_step=told.append)
    assert len(told) == len({one.requirement for one in matrix.kills}) > 0
    assert all("killed in" in line for line in told)


def test_a_full_matrix_has_pairs_that_nobody_named() -> None:
    matrix = kill_matrix(full=True, only=["ATTN-ERR-002"])
    assert len(matrix.kills) == len(BY_NAME)
    dead = {one.mutant for one in matrix.kills if one.killed}
    assert {"heads_that_do_not_divide_cycled", "heads_that_do_not_divide_clipped"} <= dead
    assert len(dead) < 20
