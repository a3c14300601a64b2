"""FlatCase: a call whose keys weigh nearly the same, so that its output is an average of very many values.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from attnkit_conformance.cases import Arrays, Case
from attnkit_conformance.draws import FloatArray, Shape

Values = Callable[[np.random.Generator, Shape], FloatArray]


def positive(rng: np.random.Generator, value: Shape) -> FloatArray:
    """Numbers between 1 and 2, times one of the same range for each column: the averages fill a whole binade."""
    return (1 + rng.random(value)) * np.exp2(rng.random(value[3]))


def constant(rng: np.random.Generator, value: Shape) -> FloatArray:
    """The same for every key: every addend of a sum is alike, and so is every rounding."""
    return np.broadcast_to(1 + rng.random((*value[:2], 1, value[3])), value)


def halves(rng: np.random.Generator, value: Shape) -> FloatArray:
    """Positive in the first half of the keys and negative in the second: parts are large where the whole is small."""
    sign = np.where(np.arange(value[2]) < value[2] // 2, 1, -1)[:, None]
    return sign * (1 + 0.5 * rng.random(value))


def normal(rng: np.random.Generator, value: Shape) -> FloatArray:
    """Either sign in no order."""
    return rng.standard_normal(value)


def swamped(rng: np.random.Generator, value: Shape) -> FloatArray:
    """One large value, then many that are just below half its spacing in float32, which rounding to nearest drops."""
    return _after_one(rng, value, 0.49)


def grazed(rng: np.random.Generator, value: Shape) -> FloatArray:
    """One large value, then many that are just below its spacing in float32, which cutting off drops."""
    return _after_one(rng, value, 0.98)


def _after_one(rng: np.random.Generator, value: Shape, spacings: float) -> FloatArray:
    large = np.exp2(rng.integers(0, 8, (*value[:2], 1, value[3])))
    return np.concatenate([large, np.broadcast_to(spacings * 2.0**-23 * large, value)[:, :, 1:]], axis=2)


VALUES: Final[dict[str, Values]] = {
    values.__name__: values for values in (positive, constant, halves, normal, swamped, grazed)
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatCase(Case):
    """A case whose scores are 0, or close to it.

    Attributes
    ----------
    values
        Name of what is averaged, one of ``VALUES``.
    focus
        What a query of the usual size is multiplied by.
    """

    values: str
    focus: float = 0.0

    @cached_property
    def arrays(self) -> Arrays:
        """Query, key and value, read-only, in the element type of the case."""
        rng = self.rng("arrays")
        query = self.focus * rng.standard_normal((self.batch, self.heads, self.queries, self.head_dim))
        key = rng.standard_normal((self.batch, self.kv_heads, self.keys, self.head_dim))
        return self.holding((query, key, VALUES[self.values](rng, (*key.shape[:3], self.width)))).arrays
