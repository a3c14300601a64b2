"""Summary of a report for people: the verdict, which conventions are broken and how, and what was not answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from attnkit_conformance.reports.kinds import KINDS, Kind, count, kind_of
from attnkit_conformance.requirements import Requirement, requirements
from attnkit_conformance.results import Report, Result

_UNANSWERED: dict[Kind, str] = {
    "refused": "not declared, and refused",
    "outside": "outside",
    "not run": "not run",
}
_TOLD = 6  # requirements that are told at length: where more are broken, one thing is


def summary(report: Report) -> Iterator[str]:
    """Give the lines."""
    yield report.footer.verdict if report.footer else "cut short: no verdict"
    broken = list(_broken(report))
    for requirement, failed in broken[:_TOLD]:
        yield from ("", _title(report, requirement, failed), *_complaint(requirement, failed))
    if len(broken) > _TOLD:
        yield from ("", *(_title(report, requirement, failed) for requirement, failed in broken[_TOLD:]))
    yield ""
    yield f"{_words(report)}; {len(report.results)} items{_duration(report)}"
    yield from _unanswered(report)


def record(report: Report) -> dict[str, Any]:
    """Give the same as data."""
    return {
        "backend": report.header.backend,
        "verdict": report.footer.verdict if report.footer else "",
        "counts": dict(count(report.results)),
        "failures": [
            {
                "requirement": requirement.id,
                "rules": list(requirement.rules),
                "statement": requirement.statement,
                "items": [{"id": result.id, "status": result.status, "message": result.message} for result in failed],
            }
            for requirement, failed in _broken(report)
        ],
    }


def _broken(report: Report) -> Iterator[tuple[Requirement, list[Result]]]:
    failed = [result for result in report.results if kind_of(result) == "failed"]
    for requirement in requirements():
        found = [result for result in failed if result.requirement == requirement.id]
        if found:
            yield requirement, found


def _title(report: Report, requirement: Requirement, failed: list[Result]) -> str:
    asked = sum(result.requirement == requirement.id for result in report.results)
    rules = ", ".join(requirement.rules)
    return f"{requirement.id} ({rules}) {requirement.title}: {len(failed)} of {asked} items fail"


def _complaint(requirement: Requirement, failed: list[Result]) -> Iterator[str]:
    """Give the rule that is broken, and the failure that tells most of it."""
    yield f"    {requirement.statement}"
    first = next((result for result in failed if result.repro), failed[0])
    yield f"    {first.status} {first.id}"
    yield from (f"        {line}" for line in first.message.strip().splitlines()[:4])
    if first.repro:
        yield f"        reproducer: {first.repro}"


def _unanswered(report: Report) -> Iterator[str]:
    """Give what was not answered, and why, of each kind that there is."""
    for kind, title in _UNANSWERED.items():
        found = Counter(why for result in report.results if kind_of(result) == kind for why in _why(result))
        if found:
            yield f"{title}: {', '.join(f'{why} ({number})' for why, number in found.most_common())}"


def _words(report: Report) -> str:
    found = count(report.results)
    return ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind]) or "nothing run"


def _duration(report: Report) -> str:
    return f" in {report.footer.seconds:.0f} s" if report.footer else ""


def _why(result: Result) -> list[str]:
    """Give each code of a refusal; or the limit of a path, or why something was not run."""
    first, _, rest = result.outcome.partition(" ")
    if first == "refused":
        return rest.split(", ")
    return [rest if first in ("outside", "unchecked") else result.outcome or result.message or "no reason"]
