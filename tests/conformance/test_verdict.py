"""The verdict: one line that follows from a report, and never says more than it shows."""

from __future__ import annotations

from typing import Any

import pytest

import attnkit as ak
from attnkit_conformance.items import manifest_digest
from attnkit_conformance.reports.declared import declared
from attnkit_conformance.results import Header, Report, Result, Worst
from attnkit_conformance.verdict import declared_count, is_conformant, verdict_of


def result(number: int = 1, status: str = "PASS", **fields: Any) -> Result:
    outcome = "answered" if status == "PASS" else ""
    given = {"id": f"ATTN-X-{number:03}/T::t[c]", "requirement": f"ATTN-X-{number:03}", "level": 1, "dtype": "float32"}
    worst = Worst(what="output", ratio=0.5) if status == "PASS" else None
    return Result(**{**given, "status": status, "outcome": outcome, "worst": worst, **fields})


def report(*results: Result, **fields: Any) -> Report:
    capabilities = declared(ak.Capabilities(dtypes=frozenset({"float32", "float16"}), gqa=True))
    given = {"suite": "0.1.0", "contract": "1.0", "requirements": "ab", "backend": "mine"}
    given["manifest"] = manifest_digest([item.id for item in results], "ab")
    given |= {"isolated": True, "capabilities": capabilities, "level": 2}
    return Report(header=Header(**{**given, **fields}), results=results)


def test_conformant() -> None:
    made = report(result(1), result(2, outcome="refused sinks", level=2))
    told = verdict_of(made)
    assert told == (
        "CONFORMANT attnkit-contract 1.0 / suite 0.1.0 / L2 / mine / declared 4 of 22 / "
        "numerics float32:strict-fp32 float16:fa-16 / waivers 0 / "
        f"manifest {made.header.manifest[:12]}"
    )
    assert is_conformant(told)


def test_a_report_that_was_cut_short_is_incomplete() -> None:
    whole = report(result(1), result(2))
    torn = whole.model_copy(update={"results": whole.results[:1]})
    assert verdict_of(torn) == "INCOMPLETE: the results are not those of all its items, each once"


def test_waivers_are_in_the_verdict() -> None:
    told = verdict_of(report(result(1), result(2, "WAIVED"), result(3, "WAIVED")))
    assert told.startswith("CONFORMANT WITH WAIVERS(2) attnkit-contract 1.0 / ")
    assert "/ waivers 2 /" in told
    assert is_conformant(told)


def test_a_path_is_named_and_what_lies_outside_is_counted() -> None:
    outside = [result(number, outcome="outside query_length must be 1") for number in (2, 3)]
    told = verdict_of(report(result(1), *outside, backend="mine:fast", path="fast"))
    assert "/ path mine:fast / outside 2 /" in told


@pytest.mark.parametrize("status", ["FAIL", "CRASH", "TIMEOUT", "XPASS"])
def test_not_conformant(status: str) -> None:
    told = verdict_of(report(result(1), result(2, status), result(2, status), result(3, status)))
    assert told == "NOT CONFORMANT: 3 failures in 2 requirements"
    assert not is_conformant(told)


def test_a_wrong_adapter_is_told_apart() -> None:
    bad, rest = result(1, "FAIL", level=0), result(2, "NOT_RUN", outcome="the adapter is wrong")
    assert verdict_of(report(bad, rest)) == "NOT CONFORMANT: the adapter is wrong, 1 failure in 1 requirement"


@pytest.mark.parametrize("outcome", ["outside query_length must be 1", "refused dtypes"])
def test_who_answers_nothing_of_the_core_fails(outcome: str) -> None:
    declaration = result(3, worst=Worst(what="the core must be declared", exact=True))
    told = verdict_of(report(result(1, outcome=outcome), declaration, result(2, outcome="answered", level=2)))
    assert told == "NOT CONFORMANT: nothing was answered at level 1"


def test_incomplete() -> None:
    told = verdict_of(report(result(1), result(2, "NOT_RUN", outcome="no device 'cuda' here")))
    assert told == "INCOMPLETE: 1 item not run: no device 'cuda' here"
    assert not is_conformant(told)
    assert verdict_of(report(result(1), result(2, "ERROR"))) == "INCOMPLETE: the suite itself broke in 1 item"
    assert verdict_of(report()) == "INCOMPLETE: there are no results"


def test_many_reasons_are_cut_short() -> None:
    results = [result(number, "NOT_RUN", outcome=f"reason {number}") for number in range(5)]
    assert verdict_of(report(*results)).endswith("; ...")


def test_a_failure_is_worth_more_than_what_is_missing() -> None:
    assert verdict_of(report(result(1, "FAIL"), result(2, "NOT_RUN"), result(3, "ERROR"))).startswith("NOT CONFORMANT")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"isolated": False}, "NO VERDICT: in process"),
        ({"partial": True}, "NO VERDICT: partial"),
        ({"sample": 0.25}, "NO VERDICT: a sample of 0.25"),
        ({"isolated": False, "partial": True}, "NO VERDICT: in process, partial"),
    ],
)
def test_no_verdict(fields: dict[str, Any], told: str) -> None:
    assert verdict_of(report(result(), **fields)) == told
    assert verdict_of(report(result(1, "FAIL"), **fields)) == f"{told}; 1 failure in 1 requirement"


def test_what_is_declared_is_counted() -> None:
    nothing, total = declared_count(declared(ak.Capabilities(dtypes=frozenset({"float64"}), deterministic=False)))
    assert nothing == 1
    everything = {name: True for name, value in declared(ak.Capabilities()).items() if isinstance(value, bool)}
    dtypes = ["float16", "bfloat16", "float32", "float64"]
    assert declared_count({**everything, "dtypes": dtypes}) == (total, total)
