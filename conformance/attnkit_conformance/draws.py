"""Distributions of query, key and value; what a fault does to a result depends on the numbers it meets.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Shape = tuple[int, ...]
Arrays = tuple[FloatArray, FloatArray, FloatArray]
Draw = Callable[[np.random.Generator, Shape, Shape, Shape], Arrays]


def uniform(rng: np.random.Generator, query: Shape, key: Shape, value: Shape) -> Arrays:
    """Everything in [0, 1): the softmax is almost flat."""
    return rng.random(query), rng.random(key), rng.random(value)


def normal(rng: np.random.Generator, query: Shape, key: Shape, value: Shape) -> Arrays:
    """The usual case: scores with a standard deviation of 1."""
    return rng.standard_normal(query), rng.standard_normal(key), rng.standard_normal(value)


def peaked(rng: np.random.Generator, query: Shape, key: Shape, value: Shape) -> Arrays:
    """Scores with a standard deviation of 6: a few keys take all the weight."""
    return 6 * rng.standard_normal(query), rng.standard_normal(key), rng.standard_normal(value)


def ascending(rng: np.random.Generator, query: Shape, key: Shape, value: Shape) -> Arrays:
    """Scores that rise along the keys from a large common offset, values of alternating sign that tell the head.

    The running maximum moves with every key, so that a missing rescale shows.
    """
    direction = np.arange(query[3]) % 2 == 0
    direction = direction / np.linalg.norm(direction)
    ramp = np.linspace(-1, 1, key[2])[:, None]
    sign = (-1.0) ** np.arange(key[2])[:, None]
    return (
        0.5 * rng.standard_normal(query) + 6 * direction,
        0.5 * rng.standard_normal(key) + (6 * ramp + 3) * direction,
        sign * (1 + 0.5 * rng.random(value)) + np.arange(value[1])[:, None, None],
    )


def climbing(rng: np.random.Generator, query: Shape, key: Shape, value: Shape) -> Arrays:
    """Scores that climb by hundreds along the keys: the last tile outweighs the first by more than ``exp`` can take."""
    steep = np.sqrt(150 * np.sqrt(query[3]))
    direction = np.ones(query[3]) / np.sqrt(query[3])
    ramp = np.linspace(-1, 1, key[2])[:, None]
    return (
        rng.standard_normal(query) + steep * direction,
        rng.standard_normal(key) + steep * ramp * direction,
        rng.standard_normal(value),
    )


def huge(rng: np.random.Generator, query: Shape, key: Shape, value: Shape) -> Arrays:
    """Scores far beyond what ``exp`` can take, and beyond float16 before they are scaled."""
    return 30 * rng.standard_normal(query), 30 * rng.standard_normal(key), rng.standard_normal(value)


def cancelling(rng: np.random.Generator, query: Shape, key: Shape, value: Shape) -> Arrays:
    """Nearly equal weights and values that cancel: the output is much smaller than what it is the sum of."""
    return 0.05 * rng.standard_normal(query), rng.standard_normal(key), 4 * rng.standard_normal(value)


DRAWS: Final[dict[str, Draw]] = {
    draw.__name__: draw for draw in (uniform, normal, peaked, ascending, climbing, huge, cancelling)
}
