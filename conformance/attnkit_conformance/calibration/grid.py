"""The grid: what calls are measured. Head sizes whose root is a power of two hide roundings, so they never stand alone.

Axes: ``T`` query length, ``S`` key length, ``D`` query/key head size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from attnkit_conformance.cases import Case, each_dtype
from attnkit_conformance.checks.numerics import EVERYTHING
from attnkit_conformance.draws import DRAWS
from attnkit_conformance.flat_cases import VALUES, FlatCase
from attnkit_conformance.gradient_cases import GradientCase, graded
from attnkit_conformance.structures import CAUSALLY

LONGEST = 16384
LONG = "long "  # how the names of their draws begin


class Measured(NamedTuple):
    """Calls that are summed up in one row of the results.

    Attributes
    ----------
    draw
        Name of the distribution.
    cases
        The calls.
    """

    draw: str
    cases: list[Case]


def forward(dtype: str, seeds: int, *, keys: int = LONGEST) -> Iterator[Measured]:
    """Give the calls whose output and log-sum-exp are measured; ``keys`` is the length of the longest."""
    for draw in DRAWS:
        yield Measured(draw, _seeded(_short(draw), dtype, seeds))
    yield Measured("everything", _seeded([EVERYTHING, replace(EVERYTHING, head_dim=80)], dtype, seeds))
    if dtype == "float64":
        return  # the oracle's own sums are of that type
    for values in VALUES:
        long = FlatCase(label="long", values=values, batch=1, heads=1, kv_heads=1, queries=1, keys=keys, head_dim=16)
        yield Measured(f"{LONG}{values}", _seeded([long], dtype, 1))


def backward(dtype: str, seeds: int) -> Iterator[tuple[str, list[GradientCase]]]:
    """Give the calls whose gradients are measured."""
    for draw in DRAWS:
        yield (
            draw,
            graded(_seeded([replace(case, queries=min(case.queries, 9)) for case in _short(draw)], dtype, seeds)),
        )


def _short(draw: str) -> list[Case]:
    return [
        Case(label="prefill", batch=1, queries=17, keys=97, head_dim=80, draw=draw, options=CAUSALLY),
        Case(label="prefill", batch=1, queries=9, keys=70, head_dim=64, draw=draw),
        Case(label="decode", batch=2, queries=1, keys=161, head_dim=128, value_dim=48, draw=draw),
    ]


def _seeded(cases: list[Case], dtype: str, seeds: int) -> list[Case]:
    return [replace(case, seed=seed) for case in each_dtype(cases, [dtype]) for seed in range(seeds)]
