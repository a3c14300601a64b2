"""From a faulty backend to a folder: the program shows the fault, is short, and says when it is gone."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.harness.remote import RemoteHarness
from attnkit_conformance.items import items
from attnkit_conformance.repro import reproduce
from attnkit_conformance.repro.casefile import CaseFile
from attnkit_conformance.selftest.plain import Plain, unregistered
from attnkit_conformance.subject import Subject

LARGEST = 4  # of every size of a case, after shrinking
LINES = 44
ALLOWED = {"array_api_compat", "attnkit", "contextlib", "faulty", "ml_dtypes", "numpy", "pathlib", "sys", "tempfile"}

# A fault, the test that meets it, how many calls show it, and what the program says.
FAULTS = [
    ("causal_loose", "TestAttendance::test_exactly_the_visible_keys_take_part", 1, "of output are wrong"),
    ("window_wide", "TestAttendance::test_exactly_the_visible_keys_take_part", 1, "of output are wrong"),
    ("value_next_head", "TestGroupedHeads::test_every_head_reads_its_own", 1, "of output are wrong"),
    ("gqa_modulo", "TestGroupedHeads::test_every_head_reads_its_own", 1, "of output are wrong"),
    ("stale_cache", "TestCacheEquivalence::test_appending_nothing_changes_nothing", 3, "of output are wrong"),
    ("truncated_still_seen", "TestForgetting::test_what_was_cut_leaves_no_trace", 4, "are wrong"),
    ("truncate_unchecked", "TestForgetting::test_too_much_is_refused", 2, "the call must raise ak.ShapeError"),
    ("fork_shares_the_tail", "TestForks::test_copies_diverge", 6, "are wrong"),
    ("restore_forgets_tokens", "TestSnapshots::test_across_a_ring", 6, "are wrong"),
    ("ring_goes_back_too_far", "TestRing::test_how_far_back_it_goes", 6, "the call must raise ak.ShapeError"),
    ("prefix_of_part_of_a_page", "TestPrefixes::test_equal_tokens_alone_are_shared", 6, "are wrong"),
    ("saved_through_half", "TestSaving::test_what_was_saved_comes_back", 6, "are wrong"),
    (
        "undeclared_dropped",
        "TestApplied::test_applied_or_refused",
        1,
        "alibi: not declared, yet the call gave a result",
    ),
    ("query_modified", "TestArguments::test_arguments_stay_as_they_are", 1, "of query are wrong"),
    ("query_gradient_not_scaled", "TestGradients::test_structures", 1, "of grad_query are wrong"),
    ("lse_base_2", "TestMerge::test_parts_make_the_whole", 1, "of lse are wrong"),
    ("batch_dependent", "TestDeterminism::test_alone_and_in_a_batch", 2, "are wrong"),
    ("wrong_dtype", "TestNumerics::test_groups", 1, "expected float32"),
    ("no_keys_crash", "TestEmpty::test_empty_axes", 1, "ValueError"),
]


@pytest.mark.parametrize(("fault", "test", "calls", "said"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_program_shows_the_fault(kit: Any, tmp_path: Path, fault: str, test: str, calls: int, said: str) -> None:
    make = kit.maker(fault)
    item = kit.caught(make, test)
    place = reproduce(item, make, tmp_path)
    assert place == tmp_path / item.fingerprint
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "arrays.npz", "case.json", "repro.py"]

    (status, output), (repaired, praise) = kit.outcomes(place)
    assert status == 1, output
    assert said in output
    assert repaired == 0, praise
    assert "fine" in praise

    program = (place / "repro.py").read_text("utf-8")
    assert len(program.splitlines()) <= LINES
    assert max(map(len, program.splitlines())) <= 120
    assert imported(program) <= ALLOWED
    case = CaseFile.model_validate_json((place / "case.json").read_text("utf-8"))
    assert case.item == item.id
    assert case.backend == f"faulty:{fault}"
    assert max(case.sizes.values()) <= LARGEST
    asked = ("ak.attention", "ak.merge", "backend.vjp", "ak.make_cache", ".append(", ".truncate(", ".attend(")
    assert sum(program.count(name) for name in asked) - program.count("backend.vjp") <= calls


def imported(program: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(program)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return modules | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_folder_holds_what_came_and_what_must_come(kit: Any, tmp_path: Path) -> None:
    make = kit.maker("gqa_modulo")
    place = reproduce(kit.caught(make, "TestGroupedHeads::test_every_head_reads_its_own"), make, tmp_path)
    assert place is not None
    with np.load(place / "arrays.npz") as arrays:
        assert set(arrays) == {"query", "key", "value", "actual", "expected", "tau"}
        apart = abs(arrays["actual"] - arrays["expected"])
        assert (apart > arrays["tau"]).any()
        assert arrays["value"].shape[1] == 2
    case = json.loads((place / "case.json").read_text("utf-8"))
    assert case["requirement"] == "ATTN-GQA-001"
    assert case["shrunk"]["keys"] == ["40", "1"]
    assert case["calls"][0] >= case["calls"][1]
    readme = (place / "README.md").read_text("utf-8")
    assert case["statement"] in readme
    assert "keys from 40 to 1" in readme


def test_bfloat16_is_stored_as_integers(kit: Any, tmp_path: Path) -> None:
    make = kit.maker("truncated_output")
    item = kit.caught(make, "TestNumerics::test_distributions")
    place = reproduce(item, make, tmp_path, seconds=2)
    assert place is not None
    case = CaseFile.model_validate_json((place / "case.json").read_text("utf-8"))
    assert case.dtype == case.arrays["actual"] == "bfloat16"
    with np.load(place / "arrays.npz") as arrays:
        assert arrays["actual"].dtype == np.uint16
    assert [status for status, _ in kit.outcomes(place)] == [1, 0]


def test_a_backend_that_passes_leaves_nothing(tmp_path: Path) -> None:
    item = next(item for item in items() if item.test == "TestApplied::test_applied_or_refused")
    assert reproduce(item, lambda: unregistered(Plain()), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


class Zero(Plain):
    def finish(self, output: Any, query: Any, request: ak.AttentionRequest) -> Any:
        return super().finish(0 * output, query, request)


def test_a_backend_that_is_an_object_is_named_by_its_class(tmp_path: Path) -> None:
    class Local(Zero):
        pass

    item = next(item for item in items() if item.test == "TestNumerics::test_groups")
    for kind, made in ((Zero, "BACKEND = backend = Zero()"), (Local, "BACKEND = backend = None  # put")):
        place = reproduce(item, lambda kind=kind: Subject(Harness("zero", kind(), kind())), tmp_path)
        assert place is not None
        program = (place / "repro.py").read_text("utf-8")
        assert made in program
        ast.parse(program)


def test_a_backend_that_dies_is_shown(tmp_path: Path) -> None:
    class Dying(Plain):
        def attention(self, *arguments: Any) -> ak.AttentionOutput:
            raise SystemError("nobody is here")

    item = next(item for item in items() if item.test == "TestApplied::test_applied_or_refused")
    place = reproduce(item, lambda: Subject(Harness("dying", Dying(), Dying())), tmp_path)
    assert place is not None
    assert "# This must not raise; it raised SystemError: nobody is here" in (place / "repro.py").read_text("utf-8")


def test_a_process_that_ends_is_shown_from_another_one(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ending_backend.py").write_text(ENDING, "utf-8")
    item = next(item for item in items() if item.test == "TestApplied::test_applied_or_refused")

    def make() -> Subject:
        harness = RemoteHarness("ending_backend:Ending")
        harness.allow(60)
        return Subject(harness)

    place = reproduce(item, make, tmp_path, seconds=0)
    assert place is not None
    assert "exit status 3" in (place / "README.md").read_text("utf-8")
    (status, output), (repaired, praise) = kit.outcomes(place)
    assert status == 1
    assert "FAULT: the process of the backend ended with status 3" in output
    assert repaired == 0, praise


ENDING = """
import os
from attnkit_conformance.selftest.plain import Plain

class Ending(Plain):
    def attention(self, *arguments):
        return super().attention(*arguments) if "REPAIRED" in os.environ else os._exit(3)
"""
