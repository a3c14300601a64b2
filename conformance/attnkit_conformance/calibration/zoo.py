"""The zoo: attention done right in every way in common use, as small backends that declare what they do.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.numerics import Sums
from attnkit_conformance.calibration.sums import blocked, fused, pairwise, sequential, truncating
from attnkit_conformance.selftest.differentiable import Differentiable, Recorded, Way
from attnkit_conformance.selftest.plain import Array, Flash, Plain, unregistered
from attnkit_conformance.selftest.softmax import Split
from attnkit_conformance.subject import Subject

WHOLE = 2**20
SINGLE = ("float32", "bfloat16")
HALVES = ("bfloat16", "float16")
EVERY = ("float64", "float32", "bfloat16", "float16")


class Summed(Plain):
    """Takes all of its sums in one way."""

    tile = WHOLE

    def dot(self, left: Array, right: Array) -> Array:
        """Multiply matrices."""
        return blocked(left, right)

    def products(self, query: Array, key: Array) -> Array:
        """Multiply queries with keys."""
        return self.dot(query, key.swapaxes(-1, -2))

    def add(self, weights: Array) -> Array:
        """Sum the weights of a tile."""
        return self.dot(weights, np.ones((*weights.shape[:2], weights.shape[3], 1), weights.dtype))

    def weigh(self, weights: Array, values: Array) -> Array:
        """Sum the values of a tile by their weights."""
        return self.dot(weights, values)


class Rounding(Flash, Summed):
    """The same, with the weights rounded to 16 bits."""

    tile = WHOLE


class Binary(Plain):
    """Takes powers of 2, as GPUs do."""

    def exp(self, argument: Array) -> Array:
        """Give the exponential."""
        return np.exp2(argument * argument.dtype.type(np.log2(np.e)))


class Dividing(Plain):
    """Divides the weights by their sum before the product with the values, as the textbook does."""

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]``."""
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        top = top if sinks is None else np.maximum(top, sinks)
        weights = self.exp(scores - self.base(top))
        total = self.add(weights) + (0 if sinks is None else self.exp(sinks - self.base(top)))
        return self.weigh(self.divide(weights, total), value), self.lse(top, total)


class SummedGradients(Differentiable, Summed):
    """Takes the sums of the way back in one way too."""

    def backward(self, call: Recorded, cotangent: Array, lse_cotangent: Any = 0) -> dict[str, Array]:
        """Give the gradients of query, key and value."""
        with np.errstate(all="ignore"):
            way = self.way(call, cotangent, lse_cotangent)
            products = self.stored(self.into_products(way, self.into_scores(way)))
        scale, transposed = way.request.scale, products.swapaxes(-1, -2)
        weights = self.stored(way.weights).swapaxes(-1, -2)
        return {
            "query": scale * self.dot(products, way.key),
            "key": self.group_sum(scale * self.dot(transposed, way.query), way.request),
            "value": self.group_sum(self.dot(weights, way.cotangent), way.request),
        }

    def reach(self, way: Way) -> Array:
        """Give the gradient of the weights."""
        return np.where(way.shown, self.dot(way.cotangent, way.value.swapaxes(-1, -2)), 0)

    def stored(self, array: Array) -> Array:
        """Keep what goes into a product."""
        return array


class RoundingGradients(SummedGradients, Rounding):
    """The same, with what goes into a product rounded to 16 bits."""

    declared = replace(Rounding.declared, grad=True)

    def stored(self, array: Array) -> Array:
        """Round to 16 bits."""
        return array if self.rounded is None else self.round(array)


class WholeDelta(SummedGradients):
    """Sums ``p_j dp_j`` in place of taking ``do·o`` from the rounded output."""

    def into_scores(self, way: Way) -> Array:
        """Give the gradient of the scores."""
        reach = self.reach(way)
        return way.weights * (reach - (way.weights * reach).sum(axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of them.

    Attributes
    ----------
    name
        What it is called in the results.
    dtypes
        Element types that it is measured in.
    make
        Makes the backend.
    """

    name: str
    dtypes: tuple[str, ...]
    make: Callable[[], Subject]


def _algorithm(
    name: str,
    parent: type[Plain],
    *mixins: type[Any],
    dtypes: tuple[str, ...],
    sums: Sums = "independent",
    **members: Any,
) -> Algorithm:
    suffix = "" if sums == "independent" else f"+{sums}"
    numerics = {dtype: profile + suffix for dtype, profile in parent.declared.numerics.items()}
    declared: ak.Capabilities = replace(parent.declared, numerics=numerics, dtypes=frozenset(dtypes))
    kind = type("Algorithm", (*mixins, parent), {"name": "zoo", "declared": declared, **members})
    return Algorithm(name, dtypes, lambda: unregistered(kind()))


ZOO = (
    _algorithm("whole", Summed, dtypes=EVERY),
    *(_algorithm(f"tiles of {size}", Summed, dtypes=SINGLE, tile=size) for size in (16, 64, 128)),
    _algorithm("split in 3", Summed, Split, dtypes=SINGLE, tile=64),
    _algorithm("divided first", Summed, Dividing, dtypes=SINGLE),
    _algorithm("powers of 2", Summed, Binary, dtypes=SINGLE, tile=64),
    _algorithm("pairwise", Summed, dtypes=SINGLE, dot=staticmethod(pairwise)),
    _algorithm("sequential", Summed, dtypes=EVERY, sums="sequential", dot=staticmethod(sequential)),
    _algorithm("sequential FMA", Summed, dtypes=SINGLE, sums="sequential", dot=staticmethod(fused)),
    _algorithm("truncating", Summed, dtypes=SINGLE, sums="truncating", dot=staticmethod(truncating)),
    _algorithm("flash, whole", Rounding, dtypes=HALVES),
    *(_algorithm(f"flash, tiles of {size}", Rounding, dtypes=HALVES, tile=size) for size in (16, 64, 128)),
    _algorithm("flash, split in 3", Rounding, Split, dtypes=HALVES, tile=64),
    _algorithm("flash, divided first", Rounding, Dividing, dtypes=HALVES),
    _algorithm("flash, powers of 2", Rounding, Binary, dtypes=HALVES, tile=64),
    _algorithm("flash, sequential", Rounding, dtypes=HALVES, sums="sequential", dot=staticmethod(sequential)),
    _algorithm("flash, truncating", Rounding, dtypes=HALVES, sums="truncating", dot=staticmethod(truncating)),
)

GRADIENT_ZOO = (
    _algorithm("whole", SummedGradients, dtypes=EVERY),
    _algorithm("delta from weights", WholeDelta, dtypes=SINGLE),
    _algorithm("sequential", SummedGradients, dtypes=SINGLE, sums="sequential", dot=staticmethod(sequential)),
    _algorithm("truncating", SummedGradients, dtypes=SINGLE, sums="truncating", dot=staticmethod(truncating)),
    _algorithm("flash, whole", RoundingGradients, dtypes=HALVES),
    _algorithm("flash, truncating", RoundingGradients, dtypes=HALVES, sums="truncating", dot=staticmethod(truncating)),
)
