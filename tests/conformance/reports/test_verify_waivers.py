"""Waivers in a report: one that is not legal, or for nothing, is found, and so is a waived result without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attnkit_conformance.reports.verify import problems
from attnkit_conformance.reports.verify_waivers import waiver_problems
from attnkit_conformance.results import Report

Alter = Callable[..., Report]


@pytest.fixture
def waived(clean: Report, changed: Alter, headed: Alter) -> Callable[..., Report]:
    """Make a report of which the first item is waived, by a waiver that is changed."""

    def waived(status: str = "WAIVED", **changes: Any) -> Report:
        waiver = {
            "id": clean.results[0].id,
            "backend": "numpy",
            "reason": "a known fault",
            "link": "https://example.org/7",
            "expires": "2026-03-01",
        }
        told = {name: text for name, text in (waiver | changes).items() if text}
        one = changed(clean, status=status, outcome="a known fault (https://example.org/7)", message="wrong")
        return headed(one, waivers=(told,))

    return waived


def test_a_legal_waiver_is_no_problem(clean: Report, waived: Alter) -> None:
    assert problems(waived()) == []
    assert problems(waived(id=clean.results[0].requirement)) == []
    assert problems(waived("XPASS")) == [], "the verdict tells of it"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expires": "2026-02-28"}, "expired on 2026-02-28, the run was on 2026-03-01"),
        ({"backend": "torch"}, "is for torch, not for numpy"),
    ],
)
def test_a_waiver_that_does_not_hold_is_found(waived: Alter, changes: dict[str, str], message: str) -> None:
    [problem] = problems(waived(**changes))
    assert problem.endswith(message)


@pytest.mark.parametrize("name", ["id", "reason", "link", "expires"])
def test_a_waiver_that_lacks_something_is_found(waived: Alter, name: str) -> None:
    found = problems(waived(**{name: ""}))
    assert found[0] == f"header: waiver 1: {name}: Field required"
    assert found[1].endswith("WAIVED, but there is no waiver for it")


def test_a_waiver_for_nothing_that_there_is_is_found(waived: Alter) -> None:
    found = problems(waived(id="ATTN-EASY-001"))
    assert found[0] == "waiver ATTN-EASY-001: there is no such item or requirement in this run"
    assert found[1].endswith("WAIVED, but there is no waiver for it")


def test_a_waiver_that_was_taken_out_is_found(waived: Alter, headed: Alter) -> None:
    [problem] = problems(headed(waived(), waivers=()))
    assert problem.endswith("WAIVED, but there is no waiver for it")


def test_a_waiver_that_is_given_twice_is_found(waived: Alter, headed: Alter) -> None:
    report = waived()
    [problem] = problems(headed(report, waivers=report.header.waivers * 2))
    assert problem.endswith("given 2 times")


def test_a_failure_that_its_waiver_did_not_settle_is_found(waived: Alter) -> None:
    [problem] = problems(waived("FAIL"))
    assert problem.endswith("FAIL, but there is a waiver for it")


def test_a_run_without_a_date_is_found(waived: Alter, headed: Alter) -> None:
    [problem] = problems(headed(waived(), started="yesterday"))
    assert problem.startswith("header: started must be a time in ISO 8601, got 'yesterday'")


def test_a_waiver_for_what_passes_is_found_in_a_whole_run(clean: Report, waived: Alter, headed: Alter) -> None:
    idle = waived("PASS")
    assert list(waiver_problems(idle, {})) != []
    whole = headed(idle, sample=1.0)
    wanted = f"waiver {clean.results[0].id}: nothing fails that it waives"
    assert wanted in problems(whole)
    assert wanted not in problems(headed(whole, partial=True))
