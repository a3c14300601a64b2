"""Verification: a true report has no problems, and whatever is altered in one is found, without the backend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnkit_conformance.items import items, manifest_digest
from attnkit_conformance.reports.verify import problems
from attnkit_conformance.results import Report

Alter = Callable[..., Report]


def test_a_true_report_has_no_problems(clean: Report) -> None:
    assert len(clean.results) > 10
    assert problems(clean) == []


def test_a_failure_that_is_told_is_no_problem(clean: Report, changed: Alter) -> None:
    worst = clean.results[0].worst
    assert worst is not None
    wrong = worst.model_copy(update={"ratio": 2.0})
    assert problems(changed(clean, status="FAIL", outcome="", message="wrong", worst=wrong)) == []
    assert problems(changed(clean, status="NOT_RUN", outcome="no device", dtype="float64")) == []
    assert problems(changed(clean, status="TIMEOUT", outcome="", message="no answer", worst=None)) == []


def only(report: Report) -> str:
    [problem] = problems(report)
    return problem


@pytest.mark.parametrize("name", ["suite", "contract", "requirements", "manifest"])
def test_another_suite_is_found(clean: Report, headed: Alter, name: str) -> None:
    assert only(headed(clean, **{name: "0.0"})).startswith(f"header: {name} must be ")


def test_another_format_is_found(clean: Report, headed: Alter) -> None:
    assert only(headed(clean, format="attnkit-conformance/0")).startswith(
        "header: format must be attnkit-conformance/1"
    )


@pytest.mark.parametrize(("name", "value"), [("level", 4), ("level", -1), ("sample", 1.5), ("sample", 0.0)])
def test_values_that_no_run_has_are_found(clean: Report, headed: Alter, name: str, value: float) -> None:
    assert any(problem.startswith(f"header: {name} must be") for problem in problems(headed(clean, **{name: value})))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"level": 1}, {"sample": 0.2}, {"sample": 1.0}])
def test_another_manifest_is_found(clean: Report, headed: Alter, changes: dict[str, Any]) -> None:
    found = problems(headed(clean, **changes))
    assert any(problem.startswith("header: manifest must be") for problem in found)
    assert any(problem.endswith(("no result", "is not an item of this run")) for problem in found)


def test_results_that_are_missing_are_found(clean: Report, headed: Alter) -> None:
    less = headed(clean.model_copy(update={"results": clean.results[1:-1]}))
    assert problems(less) == [f"{clean.results[place].id}: no result" for place in (0, -1)]


def test_a_manifest_made_to_fit_what_is_left_is_found(clean: Report, headed: Alter) -> None:
    rest = clean.results[1:]
    less = clean.model_copy(update={"results": rest})
    found = problems(headed(less, manifest=manifest_digest(result.id for result in rest)))
    assert len(found) == 2
    assert found[0].startswith("header: manifest must be ")
    assert found[1] == f"{clean.results[0].id}: no result"


def test_results_that_do_not_belong_are_found(clean: Report, headed: Alter) -> None:
    ours = {result.id for result in clean.results}
    other = next(item for item in items(2) if item.id not in ours)
    extra = clean.results[0].model_copy(update={"id": other.id})
    more = headed(clean.model_copy(update={"results": (*clean.results, extra)}))
    assert only(more) == f"{other.id}: is not an item of this run"


def test_results_that_are_there_twice_are_found(clean: Report, headed: Alter) -> None:
    twice = headed(clean.model_copy(update={"results": (*clean.results, clean.results[0])}))
    assert only(twice) == f"{clean.results[0].id}: 2 results, must be one"


@pytest.mark.parametrize(("name", "value"), [("requirement", "ATTN-EASY-001"), ("level", 3), ("dtype", "float8")])
def test_results_that_were_moved_are_found(clean: Report, changed: Alter, name: str, value: Any) -> None:
    assert f"{clean.results[0].id}: {name} must be " in only(changed(clean, **{name: value}))


@pytest.mark.parametrize("changes", [{"comparisons": 0}, {"elements": 0}, {"worst": None}])
def test_a_pass_that_compared_nothing_is_found(clean: Report, changed: Alter, changes: dict[str, Any]) -> None:
    assert only(changed(clean, **changes)) == f"{clean.results[0].id}: PASS, but nothing was compared"


@pytest.mark.parametrize("ratio", [1.0001, float("inf"), float("nan")])
def test_a_pass_outside_its_bound_is_found(clean: Report, changed: Alter, ratio: float) -> None:
    worst = clean.results[0].worst
    assert worst is not None
    wrong = changed(clean, worst=worst.model_copy(update={"ratio": ratio}))
    assert "PASS, but its worst error is" in only(wrong)


def test_a_failure_without_a_word_is_found(clean: Report, changed: Alter) -> None:
    assert only(changed(clean, status="FAIL", outcome="")) == f"{clean.results[0].id}: FAIL, but it does not say why"


def test_a_failure_that_became_a_refusal_is_found(clean: Report, changed: Alter) -> None:
    found = only(changed(clean, outcome="refused window"))
    assert found == f"{clean.results[0].id}: must be answered by what is declared, got refused window"


def test_a_declaration_that_was_made_smaller_is_found(clean: Report, headed: Alter) -> None:
    needing = {item.id: list(item.case.features()) for item in items(2) if any(item.case.features())}
    result = next(result for result in clean.results if result.id in needing and result.outcome == "answered")
    less = {**clean.header.capabilities, **dict.fromkeys(needing[result.id], False)}
    assert any(
        found.startswith(f"{result.id}: must be refused ") for found in problems(headed(clean, capabilities=less))
    )
    other = headed(clean, capabilities={**clean.header.capabilities, "dtypes": ["float64"]})
    assert any("dtype must be float64 by what is declared, got float32" in problem for problem in problems(other))


@pytest.mark.parametrize("capabilities", [{"dtypes": 3}, {"max_key_length": 3}, {"dtypes": ["float8"]}])
def test_a_declaration_that_is_none_is_found(clean: Report, headed: Alter, capabilities: dict[str, Any]) -> None:
    assert only(headed(clean, capabilities=capabilities)).startswith("header: capabilities cannot be read: ")


def test_a_run_that_was_cut_short_is_found(clean: Report) -> None:
    assert only(clean.model_copy(update={"footer": None})) == "footer: missing, the run was cut short"


def test_counts_that_are_not_those_of_the_results_are_found(clean: Report) -> None:
    assert clean.footer is not None
    footer = clean.footer.model_copy(update={"counts": {"PASS": 10_000}})
    assert only(clean.model_copy(update={"footer": footer})).startswith("footer: counts must be {'PASS': ")


def test_a_failure_that_was_turned_into_a_pass_is_found(clean: Report, changed: Alter) -> None:
    """The results were edited, and what they add up to was not."""
    failing = changed(clean, status="FAIL", outcome="", message="wrong")
    edited = failing.model_copy(update={"results": clean.results})
    found = problems(edited)
    assert len(found) == 2
    assert [problem.partition(" must")[0] for problem in found] == ["footer: counts", "footer: verdict"]


@pytest.mark.parametrize("changes", [{"partial": True}, {"isolated": False}])
def test_a_verdict_that_is_none_is_found(clean: Report, headed: Alter, changes: dict[str, Any]) -> None:
    claiming = headed(clean, **changes)
    assert problems(claiming) == []
    assert claiming.footer is not None
    footer = claiming.footer.model_copy(update={"verdict": "CONFORMANT attnkit-contract 1.0 / L1"})
    found = problems(claiming.model_copy(update={"footer": footer}))
    assert found[0] == "footer: a run that is partial, or in the process of the suite, has no verdict"
    assert found[1].startswith("footer: verdict must be 'NO VERDICT")


def test_everything_is_found_at_once(clean: Report, headed: Alter) -> None:
    broken = headed(clean.model_copy(update={"results": clean.results[1:]}), suite="0.0")
    found = problems(broken.model_copy(update={"footer": None}))
    assert len(found) == 3


def test_no_backend_is_imported(clean: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(clean.model_dump_json(), "utf-8")
    program = """
import importlib.metadata, sys
from pathlib import Path

def loaded(self):
    raise SystemExit(f"the entry point {self.name} was loaded")

importlib.metadata.EntryPoint.load = loaded
from attnkit_conformance.reports.files import load_report
from attnkit_conformance.reports.verify import problems
found = problems(load_report(Path(sys.argv[1])))
plug_ins = {name for name in sys.modules if name.partition(".")[0] in
            ("torch", "cupy", "jax", "attnkit_numpy", "attnkit_torch", "attnkit_cupy")}
print(found, plug_ins)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=False, timeout=120, capture_output=True, text=True
    )
    assert done.stdout == "[] set()\n", done.stderr


def test_a_failure_turned_into_a_call_for_another_path_is_found(clean: Report, changed: Alter) -> None:
    found = problems(changed(clean, outcome="outside path", worst=None, comparisons=0, elements=0))
    assert any("only a path that was forced leaves calls to others" in problem for problem in found)
    free = problems(changed(clean, outcome="fine"))
    assert any("PASS, but its outcome is 'fine'" in problem for problem in free)


def test_a_declaration_that_cannot_be_is_found(clean: Report, headed: Alter) -> None:
    declared = clean.header.capabilities
    more = headed(clean, capabilities={**declared, "telepathy": True})
    assert any(found.startswith("header: capabilities") for found in problems(more))
    better = headed(clean, capabilities={**declared, "numerics": {**declared["numerics"], "float32": "exact"}})
    assert any(found.startswith("header: numerics of float32") for found in problems(better))
