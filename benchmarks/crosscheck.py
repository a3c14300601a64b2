"""Cross-checks: first-party backends over many requests, and how soon faults of the self-test are found and blamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final

from attnkit_conformance.cases import DTYPES, Case
from attnkit_conformance.crosscheck import crosscheck
from attnkit_conformance.crosscheck.fuzzing import fuzz
from attnkit_conformance.crosscheck.judging import judge
from attnkit_conformance.crosscheck.requests import requests
from attnkit_conformance.crosscheck.sides import Live
from attnkit_conformance.selftest import mutants
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.plain import Plain
from benchmarks.results import Result

_OF_ONE_CALL: Final = {
    *("TestExtremes", "TestBroadcasting", "TestCore", "TestAttendance", "TestGroupedHeads", "TestOneHot", "TestShift"),
    *("TestNumerics", "TestOptions", "TestCombinations", "TestSearch", "TestEmpty", "TestQuality"),
    *("TestLaws", "TestAverages"),
}
FAMILIES: Final = {
    "masks": mutants.MASK_MUTANTS,
    "scores": mutants.SCORE_MUTANTS,
    "precision": mutants.PRECISION_MUTANTS,
    "combinations": mutants.COMBINATION_MUTANTS,
    "probes and extremes": tuple(
        mutant
        for mutant in (*mutants.PROBE_MUTANTS, *mutants.EDGE_MUTANTS, *mutants.CALL_MUTANTS)
        if mutant.killer.partition("::")[0] in _OF_ONE_CALL
    ),
}
"""Faults of what a single call computes; those of caches, gradients and refusals are no matter of cross-checking."""
_FUZZED: Final = 250
_PAIRS: Final = (("numpy", "torch"), ("numpy", "cuda-emulated"))


def agreement(count: int = 10_000) -> Iterator[Result]:
    """Put requests at random to pairs of first-party backends: the largest distance in units of both bounds."""
    for a, b in _PAIRS:
        dtypes = [dtype for dtype in DTYPES if b != "cuda-emulated" or dtype != "float64"]
        report = crosscheck(a, b, fuzz(count, 0, dtypes), shrink=False)
        apart = max((line.apart for line in report.statistics), default=float("nan"))
        note = f"{report.compared} of {report.asked} compared, {len(report.findings) + report.more} wrong"
        yield Result(f"{a} x {b}: largest distance of {count} random requests", apart, 1.0, unit="tau", note=note)


def faults() -> Iterator[Result]:
    """Put requests to every faulty backend and a correct one, until the fault shows; it must be blamed alone."""
    cases = [*fuzz(_FUZZED, 7, DTYPES), *requests("suite;one-head;repeated-head;laws", ("float32", "float16"), 0)]
    right = Live(Plain())
    answers = {id(case): right.answer(case) for case in cases}
    for name, family in FAMILIES.items():
        needed = {fault.name: _needed(fault, right, cases, answers) for fault in family}
        found = [count for count in needed.values() if count]
        missed = sorted(fault for fault, count in needed.items() if not count)
        note = f"{len(found)} of {len(needed)} found and blamed" + (f"; not: {', '.join(missed)}" if missed else "")
        yield Result(f"faults of {name}: median of requests until found", median(found), None, unit="", note=note)


def _needed(fault: Mutant, right: Live, cases: Iterable[Case], answers: dict[int, object]) -> int:
    """Give how many requests it took until the faulty side alone was blamed; 0 where none did."""
    side = Live(fault.subject())
    for number, case in enumerate(cases, 1):
        if case.dtype not in side.capabilities.dtypes:
            continue
        given = {"A": side.answer(case), "B": answers[id(case)]}
        numerics = {"A": side.numerics(case.dtype), "B": right.numerics(case.dtype)}
        judgement = judge(case, given, numerics)  # type: ignore[arg-type]  # both sides are there
        if judgement.complaints:
            return number if judgement.blamed == "A" else 0
    return 0
