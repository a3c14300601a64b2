"""Difference: every change is told, under its title, and what is worse says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from attnkit_conformance.reports.diff import Difference, compare
from attnkit_conformance.results import Report, Worst

Alter = Callable[..., Report]


def told(difference: Difference) -> set[str]:
    return {name for name, value in difference if value}


def test_a_report_does_not_differ_from_itself(clean: Report, faulty: Report) -> None:
    for report in (clean, faulty):
        difference = compare(report, report)
        assert told(difference) == set()
        assert not difference.is_worse
        assert list(difference.lines()) == ["The newer one is not worse."]


@pytest.mark.parametrize("status", ["FAIL", "ERROR", "CRASH", "TIMEOUT", "XPASS"])
def test_items_that_begin_or_cease_to_fail(clean: Report, changed: Alter, status: str) -> None:
    bad = changed(clean, status=status, outcome="", message="wrong")
    worse, better = compare(clean, bad), compare(bad, clean)
    assert told(worse) == {"newly_failing"}
    assert told(better) == {"newly_passing"}
    assert (worse.is_worse, better.is_worse) == (True, False)
    assert list(worse.lines()) == [
        "Newly failing: 1",
        f"  {clean.results[0].id}: PASS -> {status}",
        "The newer one is worse.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        ({"outcome": "answered"}, {"outcome": "refused gqa"}, True),
        ({"outcome": "refused gqa"}, {"outcome": "answered"}, False),
        ({"outcome": "answered"}, {"outcome": "outside keys"}, True),
        ({"outcome": "answered"}, {"status": "WAIVED"}, True),
        ({"outcome": "answered"}, {"status": "NOT_RUN", "outcome": "no device"}, True),
        ({"status": "FAIL", "message": "wrong"}, {"status": "NOT_RUN", "outcome": "no device"}, True),
        ({"status": "NOT_RUN", "outcome": "no device"}, {"outcome": "answered"}, False),
    ],
)
def test_other_outcomes(clean: Report, changed: Alter, old: dict[str, str], new: dict[str, str], worse: bool) -> None:
    difference = compare(changed(clean, **old), changed(clean, **new))
    assert told(difference) == {"outcomes"}
    assert len(difference.outcomes) == 1
    assert difference.is_worse is worse


def test_another_code_of_a_refusal_is_no_other_outcome(clean: Report, changed: Alter) -> None:
    assert told(compare(changed(clean, outcome="refused gqa"), changed(clean, outcome="refused gqa, lse"))) == set()


def test_items_that_came_and_went(clean: Report, changed: Alter) -> None:
    less = clean.model_copy(update={"results": clean.results[1:]})
    gone, come = compare(clean, less), compare(less, clean)
    assert told(gone) == {"removed"}
    assert told(come) == {"added"}
    assert (gone.is_worse, come.is_worse) == (True, False)
    assert compare(less, changed(clean, status="FAIL", message="wrong")).is_worse
    assert f"  {clean.results[0].id}: nothing -> answered" in list(come.lines())


@pytest.mark.parametrize(
    ("old", "new", "grown"),
    [
        (0.3, 0.61, True),
        (0.3, 0.6, False),
        (0.3, 0.1, False),
        (0.0, 0.1, False),
        (0.001, 0.101, True),
        (0.02, 0.049, False),
    ],
)
def test_errors_that_grew(clean: Report, changed: Alter, old: float, new: float, grown: bool) -> None:
    reports = [changed(clean, worst=Worst(what="output", ratio=ratio)) for ratio in (old, new)]
    difference = compare(*reports)
    assert told(difference) == ({"regressions"} if grown else set())
    assert difference.is_worse is grown


def test_errors_of_what_fails_are_no_regressions(faulty: Report) -> None:
    double = tuple(
        result.model_copy(update={"worst": result.worst and result.worst.model_copy(update={"ratio": float("inf")})})
        for result in faulty.results
        if result.status == "FAIL"
    )
    assert double
    assert told(compare(faulty.model_copy(update={"results": double}), faulty)) == {"added"}


@pytest.mark.parametrize(
    ("name", "old", "new", "worse"),
    [
        ("gqa", True, False, True),
        ("gqa", False, True, False),
        ("dtypes", ["float32"], ["float32", "float64"], False),
        ("max_key_length", None, 64, False),
        ("numerics", {"float32": "strict-fp32"}, {"float32": "strict-fp32+sequential"}, False),
        ("head_dims", {"least": 1, "most": None, "multiple": 1}, {"least": 8, "most": 64, "multiple": 8}, False),
    ],
)
def test_other_declarations(clean: Report, headed: Alter, name: str, old: Any, new: Any, worse: bool) -> None:
    before, after = (headed(clean, capabilities={**clean.header.capabilities, name: value}) for value in (old, new))
    difference = compare(before, after)
    assert told(difference) == {"capabilities"}
    assert [change.name for change in difference.capabilities] == [name]
    assert difference.is_worse is worse


def test_other_conditions_are_told_and_are_no_fault(clean: Report, headed: Alter) -> None:
    other = headed(clean, seed=3, path="tiled", environment={"python": "CPython 3.14"}, started="2030-01-01T00:00:00Z")
    difference = compare(clean, other)
    assert told(difference) == {"conditions"}
    assert [str(change) for change in difference.conditions] == [
        "path: nothing -> tiled",
        "seed: 0 -> 3",
        "environment python: CPython 3.11 -> CPython 3.14",
        "environment numpy: 2.1 -> nothing",
    ]
    assert not difference.is_worse


def test_it_is_strict_json_and_comes_back(clean: Report, changed: Alter) -> None:
    grown = changed(clean, worst=Worst(what="output", ratio=1.0))
    small = changed(clean, worst=Worst(what="output", ratio=0.1))
    difference = compare(small, grown)
    text = json.dumps(difference.model_dump(mode="json"), allow_nan=False)
    assert Difference.model_validate_json(text) == difference
