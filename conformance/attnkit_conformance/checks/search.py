"""Searches for the call with the largest error, one for each feature (A1-A12).

Tables of cases find the faults that somebody thought of; a search finds the sizes and the company in which the others
come up. Calls come in swarms: in each, some features at random are at hand, and the others are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.covering import Choice
from attnkit_conformance.features import FEATURES, NEUTRAL, Sizes, fields
from attnkit_conformance.samples import swarm
from attnkit_conformance.subject import Subject

_SWARMS: Final = 3
_EXAMPLES: Final = 25
_ALONE: Final = ("group", "width", "lengths", "offsets", "bias", "alibi", "softcap", "sinks")


@dataclass(frozen=True, kw_only=True, eq=False)
class Family(Case):
    """The simplest call that has a value of a feature, which every call of its search has.

    Attributes
    ----------
    fixed
        The value, by the name of the feature.
    """

    fixed: Choice = field(default_factory=dict)


def _family(name: str, value: str) -> Family:
    made = fields({**NEUTRAL, name: value}, Sizes(2, 5, 9, 16), np.random.default_rng(0))
    pinned = ("dtype",) if name == "dtype" else ()
    return Family(**{**made, "label": f"search-{value or 'unmasked'}"}, pinned=pinned, fixed={name: value})


FAMILIES: Final = [
    *(_family("mask", mask) for mask in FEATURES["mask"]),
    *(_family("join", mask) for mask in FEATURES["join"][1:]),
    *(_family("dtype", dtype) for dtype in FEATURES["dtype"]),
    *(_family(name, FEATURES[name][-1]) for name in _ALONE),
]


class TestSearch(Checks):
    """A12: no call that is declared has an error beyond its bound, wherever one looks."""

    @over(FAMILIES)
    def test_no_error_beyond_its_bound(self, backend: Subject, case: Family) -> None:
        """Sizes around the edges of tiles, in company at random, climbing towards the bound."""
        from attnkit_conformance.searching import Climb  # it needs Hypothesis, which nothing else here does

        rng = case.rng("search")
        for _ in range(_SWARMS):
            climb = Climb(backend, case.fixed, swarm(rng))
            climb.run(int(rng.integers(2**32)), _EXAMPLES)
            if climb.refusal is not None and not climb.answered:
                raise climb.refusal
