"""Report: what a cross-check found, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
from pydantic import Field

from attnkit_conformance.crosscheck.judging import NAMES, Judgement, Name
from attnkit_conformance.crosscheck.picture import Data, Picture

_SUMMABLE: Final = 1e100  # errors whose squares can be added up


class SideFacts(Data):
    """One of the two sides."""

    name: str
    source: str
    numerics: Mapping[str, str]


class Statistics(Data):
    """All answers of one element type to one part, in units of their bounds.

    Attributes
    ----------
    part, dtype
        ``"output"`` or ``"lse"``, and the element type of the request.
    elements
        How many were compared.
    apart, error
        The largest distance of the two sides, and the largest error of each.
    rms
        The root of the mean square error of each.
    worst
        The request with the largest distance.
    """

    part: str
    dtype: str
    elements: int
    apart: float
    error: Mapping[Name, float]
    rms: Mapping[Name, float]
    worst: str


class Finding(Data):
    """A request on which a side is wrong.

    Attributes
    ----------
    case
        The request.
    blamed
        ``"A"``, ``"B"``, or ``"A and B"``.
    complaints
        What is wrong with each.
    conventions
        What explains it: another definition, not an error of arithmetic.
    explanation
        What the wrong rows have in common, and what they are instead.
    weights
        Whether the softmax weights are wrong too.
    smallest
        The smallest request with the same fault.
    folder
        Where a program is that shows it.
    picture
        The errors of the first side that is wrong.
    """

    case: str
    blamed: str
    complaints: Mapping[Name, str]
    conventions: Mapping[Name, list[str]] = Field(default_factory=dict)
    explanation: str = ""
    weights: str = ""
    smallest: str = ""
    folder: str = ""
    picture: Picture | None = None


class DriftPoint(Data):
    """How far both sides are from the truth at one length."""

    dtype: str
    keys: int
    apart: float
    error: Mapping[Name, float]
    rms: Mapping[Name, float]


class CrossReport(Data):
    """What a cross-check found.

    Attributes
    ----------
    format
        Of this file.
    sides
        Who was asked.
    what
        What was asked, in words.
    asked, compared
        Requests in all, and those that both sides answered.
    skipped
        Why the others were not compared, and how many.
    statistics
        For each part and element type.
    findings
        Requests on which a side is wrong, those explained by a convention too; ``more`` were not kept.
    drift
        Where it was asked for.
    """

    format: Literal["attnkit-crosscheck/1"] = "attnkit-crosscheck/1"
    sides: Mapping[Name, SideFacts]
    what: str
    asked: int
    compared: int
    skipped: Mapping[str, int]
    statistics: list[Statistics]
    findings: list[Finding]
    more: int = 0
    drift: list[DriftPoint] = Field(default_factory=list)
    seconds: float = 0.0

    @property
    def agree(self) -> bool:
        """Whether both sides were within their bounds wherever they were compared, and were compared at all."""
        return not self.findings and not self.more and self.compared > 0

    @property
    def blamed(self) -> frozenset[str]:
        """The sides that were wrong anywhere: ``"A"``, ``"B"``."""
        return frozenset(side for finding in self.findings for side in finding.complaints)


class Tally:
    """Gathers judgements into statistics."""

    def __init__(self) -> None:
        self.asked = self.compared = 0
        self.skipped: Counter[str] = Counter()
        self._of: dict[tuple[str, str], dict[str, float]] = {}
        self._worst: dict[tuple[str, str], str] = {}

    def add(self, judgement: Judgement) -> None:
        """Add one."""
        self.asked += 1
        if judgement.skipped:
            self.skipped[judgement.skipped] += 1
        compared = [part for part in judgement.parts if part.apart is not None]
        self.compared += bool(compared)
        for part in compared:
            key = part.what, judgement.case.dtype
            sums = self._of.setdefault(key, dict.fromkeys(("elements", "apart", "A", "B", "A2", "B2"), 0.0))
            sums["elements"] += part.truth.size
            if part.worst_apart >= sums["apart"]:
                sums["apart"], self._worst[key] = part.worst_apart, str(judgement.case)
            for side in NAMES:
                error = part.error[side]
                if error is not None and error.size:
                    sums[side] = max(sums[side], float(error.max()))
                    sums[f"{side}2"] += float(np.square(np.where(error < _SUMMABLE, error, 0)).sum())

    def statistics(self) -> list[Statistics]:
        """Give what was gathered."""
        return [
            Statistics(
                part=part,
                dtype=dtype,
                elements=int(sums["elements"]),
                apart=sums["apart"],
                error={side: sums[side] for side in NAMES},
                rms={side: float(np.sqrt(sums[f"{side}2"] / max(sums["elements"], 1))) for side in NAMES},
                worst=self._worst[part, dtype],
            )
            for (part, dtype), sums in sorted(self._of.items())
        ]


def point_of(judgement: Judgement) -> DriftPoint | None:
    """Give a point of a drift, where both sides answered."""
    part = next((part for part in judgement.parts if part.what == "output" and part.apart is not None), None)
    if part is None:
        return None
    errors = {side: error for side in NAMES if (error := part.error[side]) is not None}
    return DriftPoint(
        dtype=judgement.case.dtype,
        keys=judgement.case.keys,
        apart=part.worst_apart,
        error={side: part.worst(side) for side in NAMES},
        rms={side: float(np.sqrt(np.square(error).mean())) for side, error in errors.items()},
    )
