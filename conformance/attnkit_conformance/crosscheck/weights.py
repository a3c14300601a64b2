"""Weights apart from values: with unit vectors for values, the output of a request is its softmax weights.

Axes: ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.judging import Judgement, Name, judge
from attnkit_conformance.crosscheck.sides import Side

_MOST = 16  # requests


def about_weights(case: Case, sides: dict[Name, Side], blamed: Name) -> str:
    """Say whether the weights of a side are right, in a request whose output is not."""
    other: Name = "B" if blamed == "A" else "A"
    for start, shown in _shown(case):
        found: Judgement = judge(
            shown,
            {blamed: sides[blamed].answer(shown), other: sides[other].answer(shown)},
            {name: side.numerics(case.dtype) for name, side in sides.items()},
        )
        if found.skipped or not found.parts:
            return ""
        part = found.parts[0]
        if part.worst(blamed) > 1:
            error = part.error[blamed]
            assert error is not None  # it is larger than 1
            b, h, i, e = (int(n) for n in np.unravel_index(int(error.argmax()), error.shape))
            given = part.given[blamed]
            assert given is not None  # it has an error because it was given
            return (
                f"weights are wrong: key {start + e} of query [{b}, {h}, {i}] weighs {given[b, h, i, e]:.6g}, "
                f"not {part.truth[b, h, i, e]:.6g}"
            )
    return "weights are right: what is wrong is their product with the values"


def _shown(case: Case) -> Iterator[tuple[int, Case]]:
    """Give requests whose outputs are the weights of ``E`` keys each."""
    width = case.width
    for start in range(0, min(case.keys, _MOST * width), width):
        value = np.zeros((case.batch, case.kv_heads, case.keys, width))
        keys = np.arange(start, min(start + width, case.keys))
        value[:, :, keys, keys - start] = 1
        yield start, case.holding((case.arrays[0], case.arrays[1], value))
