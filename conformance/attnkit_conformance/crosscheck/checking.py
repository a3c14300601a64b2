"""crosscheck: put requests to two sides, judge, and look into what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import attnkit as ak
from attnkit_conformance.cases import DTYPES, Case
from attnkit_conformance.crosscheck.calls import Promise, Rounding
from attnkit_conformance.crosscheck.conventions import conventions_of
from attnkit_conformance.crosscheck.judging import NAMES, Judgement, Name, judge
from attnkit_conformance.crosscheck.localising import explanation
from attnkit_conformance.crosscheck.picture import picture_of
from attnkit_conformance.crosscheck.report import CrossReport, DriftPoint, Finding, SideFacts, Tally, point_of
from attnkit_conformance.crosscheck.reproducing import write_program
from attnkit_conformance.crosscheck.shrinking import shrunk
from attnkit_conformance.crosscheck.sides import Live, Side
from attnkit_conformance.crosscheck.weights import about_weights
from attnkit_conformance.custom import label_of
from attnkit_conformance.subject import Answer

Target = str | ak.Backend | Side
OnCase = Callable[[Judgement], None]
MOST: Final = 12
"""How many findings are looked into; there may be a thousand of one fault."""
_SHRINKING: Final = 20.0  # seconds for a finding


def crosscheck(
    a: Target,
    b: Target,
    requests: Iterable[Case],
    *,
    drift: Iterable[Case] = (),
    what: str = "",
    keep_going: bool = True,
    shrink: bool = True,
    repro: Path | None = None,
    on_case: OnCase | None = None,
) -> CrossReport:
    """Ask two sides the same, and say whether they agree, and which one is to blame where they do not.

    Parameters
    ----------
    a, b
        Backends, their names, or any ``Side``.
    requests
        What to ask.
    drift
        More requests, whose errors are to be shown by length.
    what
        What is asked, in words.
    keep_going
        Go on after the first request on which a side is wrong.
    shrink
        Look for the smallest request with the same fault.
    repro
        Folder for programs that show what was found.
    on_case
        Is told each judgement.

    Returns
    -------
    CrossReport
        ``.agree``, ``.blamed``, ``.findings``.
    """
    start, opened = time.perf_counter(), [not isinstance(side, str | ak.Backend) for side in (a, b)]
    sides: dict[Name, Side] = {"A": _side(a), "B": _side(b)}
    try:
        return _Check(sides, shrink, repro, on_case).run(requests, drift, what, start, keep_going=keep_going)
    finally:
        for name, ours in zip(NAMES, opened, strict=True):
            if not ours:
                sides[name].close()


class _Check:
    def __init__(self, sides: dict[Name, Side], shrink: bool, repro: Path | None, on_case: OnCase | None) -> None:
        self.sides, self.shrink, self.repro, self.on_case = sides, shrink, repro, on_case
        self.tally, self.findings, self.more = Tally(), list[Finding](), 0
        self.points: list[DriftPoint] = []

    def run(
        self, requests: Iterable[Case], drift: Iterable[Case], what: str, start: float, *, keep_going: bool
    ) -> CrossReport:
        for case in requests:
            self._take(self.ask(case))
            if self.findings and not keep_going:
                break
        for case in drift:
            judgement = self.ask(case)
            self._take(judgement)
            point = point_of(judgement)
            self.points += [] if point is None else [point]
        return CrossReport(
            sides={name: _facts(side) for name, side in self.sides.items()},
            what=what,
            asked=self.tally.asked,
            compared=self.tally.compared,
            skipped=dict(self.tally.skipped.most_common()),
            statistics=self.tally.statistics(),
            findings=self.findings,
            more=self.more,
            drift=self.points,
            seconds=time.perf_counter() - start,
        )

    def ask(self, case: Case) -> Judgement:
        """Put a request to both."""
        given = {name: side.answer(case) for name, side in self.sides.items()}
        return judge(case, given, {name: side.numerics(case.dtype) for name, side in self.sides.items()})

    def _take(self, judgement: Judgement) -> None:
        self.tally.add(judgement)
        if self.on_case is not None:
            self.on_case(judgement)
        if not judgement.complaints:
            return
        if len(self.findings) >= MOST:
            self.more += 1
            return
        self.findings.append(self._looked_into(judgement))

    def _looked_into(self, judgement: Judgement) -> Finding:
        conventions = {name: self._conventions(judgement, name) for name in judgement.complaints}
        conventions = {name: told for name, told in conventions.items() if told}
        small = judgement
        if self.shrink and not conventions and not isinstance(judgement.case, Rounding):  # which is about many numbers
            small = shrunk(judgement, self.ask, _SHRINKING)
        first: Name = min(judgement.complaints)
        part = next((part for part in judgement.parts if part.what == "output" and part.worst(first) > 1), None)
        return Finding(
            case=str(judgement.case),
            blamed=judgement.blamed,
            complaints=judgement.complaints,
            conventions=conventions,
            explanation="" if part is None or conventions else explanation(judgement.case, part, first),
            weights="" if part is None or conventions else about_weights(judgement.case, self.sides, first),
            smallest=str(small.case) if small is not judgement else "",
            folder=self._program(small, first),
            picture=None if part is None else picture_of(part, first, judgement.case.dtype),
        )

    def _program(self, judgement: Judgement, blamed: Name) -> str:
        """Write a program, where one call is enough to show what is wrong."""
        if self.repro is None or isinstance(judgement.case, Promise):
            return ""
        return str(write_program(self.repro, judgement, self.sides, blamed))

    def _conventions(self, judgement: Judgement, name: Name) -> list[str]:
        given = {part.what: part.given[name] for part in judgement.parts}
        output = given.get("output")
        if output is None:
            return []
        answer = Answer(output, given.get("lse"))
        return conventions_of(judgement.case, answer, self.sides[name].numerics(judgement.case.dtype))


def _side(target: Target) -> Side:
    return Live(target) if isinstance(target, str | ak.Backend) else target


def _facts(side: Side) -> SideFacts:
    numerics = {}
    for dtype in DTYPES:
        try:
            numerics[dtype] = label_of(side.numerics(dtype))
        except (KeyError, ValueError, ak.DTypeError):
            continue
    return SideFacts(name=side.name, source=side.source, numerics=numerics)
