"""Waivers of a report: each must be one, hold on the day of the run, and be for something that fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date, datetime

from pydantic import ValidationError

from attnkit_conformance.items import Item
from attnkit_conformance.reports.journal import explained
from attnkit_conformance.results import Header, Report, Result
from attnkit_conformance.waivers import Waiver

_FAILED = frozenset({"FAIL", "CRASH", "TIMEOUT"})


def waiver_problems(report: Report, wanted: Mapping[str, Item]) -> Iterator[str]:
    """Give what is wrong with the waivers of a report, and with the results that they are for."""
    waivers = []
    for number, plain in enumerate(report.header.waivers, 1):
        try:
            waivers.append(Waiver.model_validate(plain))
        except ValidationError as error:
            yield f"header: waiver {number}: {explained(error)}"
    yield from _illegal(report.header, waivers, wanted)
    names = {waiver.id for waiver in waivers}
    yield from (f"{result.id}: {text}" for result in report.results for text in _unsettled(result, names))
    yield from _idle(report, waivers)


def _illegal(header: Header, waivers: list[Waiver], wanted: Mapping[str, Item]) -> Iterator[str]:
    known = {name for item in wanted.values() for name in (item.id, item.requirement.id)}
    given = Counter(waiver.id for waiver in waivers)
    day = _day(header.started)
    if waivers and day is None:
        yield f"header: started must be a time in ISO 8601, got {header.started!r}; no waiver can be dated by it"
    for waiver in waivers:
        if waiver.id not in known:
            yield f"waiver {waiver.id}: there is no such item or requirement in this run"
        if waiver.backend != header.backend:
            yield f"waiver {waiver.id}: is for {waiver.backend}, not for {header.backend}"
        if day is not None and waiver.expires < day:
            yield f"waiver {waiver.id}: expired on {waiver.expires}, the run was on {day}"
    yield from (f"waiver {name}: given {number} times" for name, number in given.items() if number > 1)


def _unsettled(result: Result, names: set[str]) -> Iterator[str]:
    """Give a result that is waived by nothing, or that a waiver should have settled."""
    covered = result.id in names or result.requirement in names
    if result.status in ("WAIVED", "XPASS") and not covered:
        yield f"{result.status}, but there is no waiver for it"
    if result.status in _FAILED and covered:
        yield f"{result.status}, but there is a waiver for it"


def _idle(report: Report, waivers: list[Waiver]) -> Iterator[str]:
    """Give waivers whose results all pass, in a run that has all of them."""
    if report.header.partial or report.header.sample < 1:
        return
    for waiver in waivers:
        statuses = {result.status for result in report.results if waiver.id in (result.id, result.requirement)}
        if statuses == {"PASS"}:
            yield f"waiver {waiver.id}: nothing fails that it waives"


def _day(moment: str) -> date | None:
    try:
        return datetime.fromisoformat(moment).date()
    except ValueError:
        return None
