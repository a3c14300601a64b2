"""Support matrix: what is declared and what was measured, counted from real results."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import fields

import attnkit as ak
from attnkit_conformance.cases import DTYPES
from attnkit_conformance.items import items
from attnkit_conformance.reports import support
from attnkit_conformance.reports.matrix import Row, rows
from attnkit_conformance.requirements import requirements
from attnkit_conformance.results import Report

OPTIONS = {field.name for field in fields(ak.Capabilities) if field.type == "bool"} - {
    "deterministic",
    "batch_invariant",
}


def by_name(report: Report) -> dict[tuple[str, str], Row]:
    return {(row.capability, row.value): row for row in rows(report)}


def test_it_has_a_line_for_everything_that_can_be_declared(faulty: Report) -> None:
    found = rows(faulty)
    names = [field.name for field in fields(ak.Capabilities)]
    assert list(dict.fromkeys(row.capability for row in found)) == names
    assert [row.value for row in found if row.capability == "dtypes"] == list(DTYPES)
    assert [row.value for row in found if row.capability == "numerics"] == ["float32", "bfloat16"]


def test_declarations_stand_as_they_were_made(faulty: Report) -> None:
    found = {name: row.declared for name, row in by_name(faulty).items()}
    assert found["window", ""] == found["dtypes", "bfloat16"] == "yes"
    assert found["softcap", ""] == found["dtypes", "float64"] == "no"
    assert found["head_dims", ""] == ">= 1"
    assert found["max_key_length", ""] == "unlimited"
    assert found["numerics", "bfloat16"] == "fp32P-16"
    assert found["libraries", ""] == "numpy"


def test_what_is_not_declared_was_refused_by_name(faulty: Report) -> None:
    for option in ("softcap", "sinks", "bias"):
        row = by_name(faulty)[option, ""]
        wanted = sum(option in result.outcome.replace(",", " ").split() for result in faulty.results)
        assert row.refused == wanted > 0
        assert (row.answered, row.state) == (0, "refused")


def test_what_is_declared_counts_the_calls_that_need_it(faulty: Report) -> None:
    needing = {item.id for item in items(2) if "gqa" in item.case.features()}
    asked = [result for result in faulty.results if result.id in needing]
    row = by_name(faulty)["gqa", ""]
    assert row.answered == sum(result.outcome == "answered" and result.status == "PASS" for result in asked)
    assert row.failed == sum(result.status == "FAIL" for result in asked) > 0
    assert row.state == "fails"


def test_of_another_suite_the_requirement_decides(faulty: Report) -> None:
    requirement = next(requirement for requirement in requirements() if requirement.capabilities == ("sinks",))
    unknown = faulty.results[0].model_copy(update={"id": "ATTN-OLD-001/x", "requirement": requirement.id})
    one = faulty.model_copy(update={"results": (unknown.model_copy(update={"status": "FAIL", "outcome": ""}),)})
    assert {row.capability for row in rows(one) if row.failed and not row.value} == {"sinks"}


def test_the_worst_error_is_that_of_the_element_type(faulty: Report) -> None:
    for dtype in ("float32", "bfloat16"):
        ratios = [r.worst.ratio for r in faulty.results if r.dtype == dtype and r.worst and not r.worst.exact]
        assert by_name(faulty)["dtypes", dtype].worst == by_name(faulty)["numerics", dtype].worst == max(ratios) > 1


def test_a_correct_backend_holds_what_it_declares(clean: Report) -> None:
    found = rows(clean)
    assert {"holds"} < {row.state for row in found} <= {"holds", "refused", "not measured"}
    assert all(row.declared != "no" for row in found if row.state == "holds")
    assert all(row.failed == 0 for row in found)
    assert by_name(clean)["dtypes", "float32"].worst is not None


def test_what_could_not_be_run_is_counted(clean: Report, changed: Callable[..., Report]) -> None:
    one = changed(clean, status="NOT_RUN", outcome="no device")
    assert by_name(one)["dtypes", clean.results[0].dtype].not_run == 1


def test_a_backend_that_is_not_there_has_an_empty_one(clean: Report, headed: Callable[..., Report]) -> None:
    assert rows(headed(clean, capabilities={})) == []


def test_unknown_fields_of_a_newer_contract_are_shown(clean: Report, headed: Callable[..., Report]) -> None:
    newer = headed(clean, capabilities={**clean.header.capabilities, "relative": True})
    assert rows(newer)[-1].model_dump() == {
        "capability": "relative", "value": "", "declared": "yes", "state": "not measured",
        "answered": 0, "refused": 0, "failed": 0, "not_run": 0, "worst": None,
    }  # fmt: skip


def test_csv_and_json_say_the_same(faulty: Report) -> None:
    found = [row.model_dump(mode="json") for row in rows(faulty)]
    assert json.loads(support.json_text(faulty)) == found
    table = list(csv.DictReader(io.StringIO(support.csv_text(faulty))))
    assert table == [{name: "" if value is None else str(value) for name, value in row.items()} for row in found]


def test_markdown_is_one_table_that_no_name_can_break(faulty: Report) -> None:
    text = support.markdown(faulty)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows(faulty))
    assert {line.replace("\\|", "").count("|") for line in table} == {9}
    assert text.startswith("# Support matrix of \\<faulty\\> & 'odd'\n")
    assert "| `softcap` | no | – refused |" in text
