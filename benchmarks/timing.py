"""Side-by-side timing: two functions in turns in one process, and the ratio of their medians.

A shared machine has quiet and noisy minutes that differ by a factor of three. Turns make both sides suffer alike; a
round in which the baseline itself does not hold still is thrown away and repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two functions took, in seconds, and how steady the baseline was.

    Attributes
    ----------
    candidate, baseline
        Medians over the turns of the round that was kept.
    spread
        Interquartile range of the baseline over its median.
    rounds
        Rounds that were measured until one was steady enough.
    """

    candidate: float
    baseline: float
    spread: float
    rounds: int

    @property
    def ratio(self) -> float:
        """Time of the candidate over time of the baseline."""
        return self.candidate / self.baseline


def compare(candidate: Work, baseline: Work, *, turns: int = 15, steady: float = 0.15, rounds: int = 5) -> Comparison:
    """Time two functions in turns; keep the first round whose baseline is steady, or else the steadiest."""
    candidate(), baseline()
    best: Comparison | None = None
    for number in range(1, rounds + 1):
        mine, theirs = _round(candidate, baseline, turns)
        found = Comparison(median(mine), median(theirs), _spread(theirs), number)
        if best is None or found.spread < best.spread:
            best = found
        if found.spread <= steady:
            return found
    assert best is not None  # rounds >= 1
    return Comparison(best.candidate, best.baseline, best.spread, rounds)


def seconds(work: Work, *, calls: int = 1) -> float:
    """Time ``calls`` calls in a row, in seconds a call."""
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def _round(candidate: Work, baseline: Work, turns: int) -> tuple[list[float], list[float]]:
    mine, theirs = [], []
    for turn in range(turns):
        order = ((candidate, mine), (baseline, theirs))
        for work, times in order if turn % 2 else reversed(order):
            times.append(seconds(work))
    return mine, theirs


def _spread(times: list[float]) -> float:
    low, middle, high = quantiles(times, n=4)
    return (high - low) / middle
