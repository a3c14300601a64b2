"""Minimum detectable effect: how small an error each requirement still notices.

A relative error ``e`` is put into the correct small backend at a place drawn at random, and the smallest power of 2 is
sought that is detected in 19 of 20 draws, that is with a probability of 0.95. There are three kinds of places: one
element of the result that is not 0, one row of it, and the weight of one key, in all rows of one head. For gradients,
the result is every gradient that was asked for. A requirement is represented by two of its items, so that these are
upper bounds: all of its items together see more.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict

import attnkit as ak
from attnkit_conformance.items import Item
from attnkit_conformance.measuring import measuring
from attnkit_conformance.requirements import requirements
from attnkit_conformance.selftest.differentiable import Differentiable, Recorded, Way
from attnkit_conformance.selftest.gate import cheapest_first, first_failure
from attnkit_conformance.selftest.plain import Array, unregistered

Place = Literal["element", "row", "weight"]
Tell = Callable[[str], None]
PLACES: Final[tuple[Place, ...]] = get_args(Place)
SEEDS: Final = 20
DETECTED: Final = 19
SMALLEST: Final = -30
LARGEST: Final = 4
_ITEMS: Final = 2
_LOOKED_AT: Final = 6  # of a requirement's items, for some that compare within a bound
_SEARCHES: Final = ("TestAgreement", "TestCacheMachine", "TestSearch")  # each item is a long run of calls of its own


class Effect(BaseModel):
    """The smallest error that a requirement detects, as powers of 2.

    Attributes
    ----------
    requirement
        Its id.
    element, row, weight
        ``e = 2**element`` in one element, and so on; ``None`` where even 16 times the right number goes unnoticed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requirement: str
    element: int | None
    row: int | None
    weight: int | None

    @property
    def is_seen(self) -> bool:
        """An error is detected in some place."""
        return any(getattr(self, place) is not None for place in PLACES)

    def worse_than(self, other: Effect, steps: int = 1) -> list[str]:
        """Say where more than so many doublings of the other's error are needed to be detected."""
        return [
            f"{self.requirement}: an error in one {place} is detected from 2**{mine} on, was 2**{theirs}"
            for place in PLACES
            if _size(mine := getattr(self, place)) > _size(theirs := getattr(other, place)) + steps
        ]


class Erring(Differentiable):
    """Correct, but for an error of relative size ``error`` at one place, another one with every seed."""

    name = "erring"

    def __init__(self, place: Place, error: float, seed: int) -> None:
        self.place, self.error = place, error
        self.rng = np.random.default_rng(seed)

    def hide(self, scores: Array, shown: Array, request: ak.AttentionRequest) -> Array:
        """Let one key of one head weigh more."""
        hidden = super().hide(scores, shown, request)
        return self.heavier(hidden, np.log1p(self.error)) if self.place == "weight" else hidden

    def finish(self, output: Array, query: Array, request: ak.AttentionRequest) -> Array:
        """Put the error into the output."""
        return super().finish(self.wrong(output), query, request)

    def backward(self, call: Recorded, *cotangents: Any) -> dict[str, Array]:
        """Put the error into every gradient."""
        return {name: self.wrong(gradient) for name, gradient in super().backward(call, *cotangents).items()}

    def way(self, call: Recorded, cotangent: Array, lse_cotangent: Any) -> Way:
        """Let one key of one head weigh more on the way back."""
        way = super().way(call, cotangent, lse_cotangent)
        if self.place != "weight":
            return way
        return way._replace(weights=np.exp(self.heavier(np.log(way.weights), np.log1p(self.error))))

    def wrong(self, array: Array) -> Array:
        """Put the error into one element, or into the last axis at one place."""
        if self.place == "weight" or not array.size:
            return array
        array, places = np.array(array), np.argwhere(array)
        if places.size:
            where = tuple(self.rng.choice(places))
            array[where if self.place == "element" else where[:-1]] *= 1 + self.error
        return array

    def heavier(self, scores: Array, more: float) -> Array:
        """Add to the scores ``[B, H, T, S]`` of one key of one head, of those that are not alone in every row."""
        seen = np.isfinite(scores)
        places = np.argwhere((seen & (seen.sum(axis=-1, keepdims=True) > 1)).any(axis=2))
        if places.size:
            b, h, j = self.rng.choice(places)
            scores = np.array(scores)
            scores[b, h, :, j] += more
        return scores


def measured(chosen: Iterable[str] | None = None, on_step: Tell | None = None) -> Iterator[Effect]:
    """Measure requirements, by default all, and give the effects of those that detect anything."""
    wanted = None if chosen is None else set(chosen)
    for requirement in requirements():
        representative = representatives(requirement.id) if wanted is None or requirement.id in wanted else ()
        if representative:
            powers = {place: smallest(representative, place) for place in PLACES}
            effect = Effect(requirement=requirement.id, **powers)
            if on_step is not None:
                on_step(f"{requirement.id}: {', '.join(f'{place} {power}' for place, power in powers.items())}")
            if effect.is_seen:
                yield effect


def regressions(chosen: Iterable[str] | None = None, on_step: Tell | None = None) -> Iterator[str]:
    """Measure requirements again, and say which detect less than is published, or nothing any more."""
    known = published()
    again = {effect.requirement: effect for effect in measured(chosen, on_step)}
    for name in known if chosen is None else chosen:
        yield from again[name].worse_than(known[name]) if name in again else [f"{name}: no error is detected any more"]
    for name in again.keys() - known.keys():
        yield f"{name} has no published effect; run python -m {__name__}"


@cache
def published() -> Mapping[str, Effect]:
    """Give the effects that come with the package, by requirement."""
    text = (files("attnkit_conformance") / "selftest" / "effects.json").read_text("utf-8")
    return {entry["requirement"]: Effect(**entry) for entry in json.loads(text)}


def representatives(requirement: str) -> tuple[Item, ...]:
    """Give a few items of a requirement that compare within a bound: usual ones and cheap ones first."""
    every = [item for item in cheapest_first(requirement) if not item.test.startswith(_SEARCHES)]
    return tuple(islice(filter(_has_tolerance, sorted(every, key=_oddity)[:_LOOKED_AT]), _ITEMS))


def smallest(chosen: tuple[Item, ...], place: Place) -> int | None:
    """Find the smallest power of 2 that is detected often enough, by bisection."""
    low, high = SMALLEST - 1, LARGEST + 1  # not detected, and detected by definition
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _detected(chosen, place, middle) else (middle, high)
    return high if high <= LARGEST else None


def _detected(chosen: tuple[Item, ...], place: Place, power: int) -> bool:
    """Tell whether an error is detected in enough of the runs."""
    missed = 0
    for seed in range(SEEDS):
        missed += first_failure(unregistered(Erring(place, 2.0**power, seed)), chosen)[1] is None
        if missed > SEEDS - DETECTED:
            return False
    return True


def _oddity(item: Item) -> tuple[bool, bool, bool]:
    """Tell how unusual an item is: its element type, and sizes at which little can go wrong."""
    case = item.case
    return case.dtype != "float32", case.keys < 5, case.queries < 3


@cache
def _has_tolerance(item: Item) -> bool:
    with measuring() as notes:
        item.run(unregistered(Differentiable()))
    return any(not note.exact and 0 < note.tau < np.inf for note in notes)


def _size(power: int | None) -> int:
    return LARGEST + 1 if power is None else power


def write(path: Path, on_step: Tell | None = None) -> None:
    """Measure everything, and publish it."""
    entries = [effect.model_dump() for effect in measured(on_step=on_step)]
    path.write_text(json.dumps(entries, indent=1) + "\n", "utf-8")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    write(Path(__file__).with_name("effects.json"), _say)
