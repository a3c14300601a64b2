from __future__ import annotations

import pytest

from attnkit_conformance.cli.summary import record, summary
from attnkit_conformance.items import items
from attnkit_conformance.results import Footer, Header, Report, Result

HEADER = Header(suite="1", contract="1.0", requirements="", manifest="", backend="theirs")
CORE = items(1)


def results(*parts: tuple[str, str, str]) -> list[Result]:
    """Give a result for each status, outcome and message, of one item after the other."""
    return [
        Result(
            id=item.id,
            requirement=item.requirement.id,
            level=item.requirement.level,
            dtype="float32",
            status=status,
            outcome=outcome,
            message=message,
        )
        for item, (status, outcome, message) in zip(CORE, parts, strict=False)
    ]


@pytest.fixture
def report() -> Report:
    """A report with a bit of everything."""
    found = results(
        ("PASS", "answered", ""),
        ("PASS", "refused sinks, lengths", ""),
        ("PASS", "refused lengths", ""),
        ("PASS", "outside query_length must be 1", ""),
        ("NOT_RUN", "unchecked gradients, since the backend has no vjp", ""),
        ("NOT_RUN", "no device 'cuda:0' here", ""),
        ("FAIL", "", "Mismatch: output: 3 of 8 elements\nraised at backend.py:7"),
    )
    footer = Footer(counts={"FAIL": 1}, seconds=61.4, verdict="NOT CONFORMANT: 1 failure in 1 requirement")
    return Report(header=HEADER, results=tuple(found), footer=footer)


def test_it_names_what_is_broken_and_what_was_not_answered(report) -> None:
    broken, failed = CORE[6].requirement, report.results[6]
    assert list(summary(report)) == [
        "NOT CONFORMANT: 1 failure in 1 requirement",
        "",
        f"{broken.id} ({', '.join(broken.rules)}) {broken.title}: 1 of {asked(report, broken.id)} items fail",
        f"    {broken.statement}",
        f"    FAIL {failed.id}",
        "        Mismatch: output: 3 of 8 elements",
        "        raised at backend.py:7",
        "",
        "1 answered, 2 refused, 1 outside, 1 failed, 2 not run; 7 items in 61 s",
        "not declared, and refused: lengths (2), sinks (1)",
        "outside: query_length must be 1 (1)",
        "not run: gradients, since the backend has no vjp (1), no device 'cuda:0' here (1)",
    ]


def test_the_same_as_data(report) -> None:
    data = record(report)
    assert data["backend"] == "theirs"
    assert data["verdict"] == "NOT CONFORMANT: 1 failure in 1 requirement"
    assert data["counts"] == {"answered": 1, "refused": 2, "outside": 1, "not run": 2, "failed": 1}
    assert [failure["requirement"] for failure in data["failures"]] == [CORE[6].requirement.id]


def test_a_failure_with_a_reproducer_is_told_before_one_without(report) -> None:
    first = report.results[6]
    second = first.model_copy(update={"id": "ATTN-NEW-001/Test::test[case]", "repro": "repro/0123"})
    lines = list(summary(report.model_copy(update={"results": (first, second)})))
    assert f"    FAIL {second.id}" in lines
    assert "        reproducer: repro/0123" in lines
    assert f"    FAIL {first.id}" not in lines


def asked(report: Report, requirement: str) -> int:
    return sum(result.requirement == requirement for result in report.results)
