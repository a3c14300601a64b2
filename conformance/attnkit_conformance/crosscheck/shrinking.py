"""Shrinking: the smallest request for which the same side is to blame for the same thing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.judging import Judgement
from attnkit_conformance.repro.shrinking import STEPS

Ask = Callable[[Case], Judgement]


def shrunk(judgement: Judgement, ask: Ask, seconds: float) -> Judgement:
    """Give the judgement of the smallest request that could be found in so many seconds."""
    deadline, before = time.monotonic() + seconds, None
    while before is not judgement:
        before = judgement
        for step in STEPS:
            while (smaller := _first(step(judgement.case), judgement, ask, deadline)) is not None:
                judgement = smaller
    return judgement


def _first(cases: Iterator[Case], judgement: Judgement, ask: Ask, deadline: float) -> Judgement | None:
    for case in cases:
        if time.monotonic() > deadline:
            return None
        found = ask(case)
        if found.complaints.keys() == judgement.complaints.keys() and _kinds(found) == _kinds(judgement):
            return found
    return None


def _kinds(judgement: Judgement) -> list[str]:
    """Give what is wrong, without where and how much."""
    return sorted(f"{side} {text.partition(':')[0]}" for side, text in judgement.complaints.items())
