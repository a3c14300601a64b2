"""Softmax over tiles of keys with a running maximum, in plain NumPy: one method for each step that can be got wrong.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size, ``w`` keys of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any


class Softmax:
    """Weights and values, tile by tile."""

    tile = 16

    def softmax(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array]:
        """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]``."""
        output, top, total = self.accumulate(scores, value, sinks)
        return self.divide(output, total), self.lse(top, total)

    def accumulate(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array, Array]:
        """Give the sum of the values, the largest score, and the normaliser, each relative to that score."""
        output = np.zeros((*scores.shape[:3], value.shape[3]), scores.dtype)
        top = np.full((*scores.shape[:3], 1), -np.inf, scores.dtype)
        total = np.zeros_like(top)
        if sinks is not None:
            top[...], total[...] = sinks, sinks > -np.inf
        for part, values in self.tiles(scores, value):
            old, top = top, self.maximum(top, part)
            base = self.base(top)
            weights, shrink = self.exp(part - base), self.exp(old - base)
            total = self.store_total(total * self.rescale_total(shrink) + self.add(weights))
            output = self.store_output(output * self.rescale_output(shrink) + self.weigh(weights, values))
        return output, top, total

    def tiles(self, scores: Array, value: Array) -> Iterator[tuple[Array, Array]]:
        """Cut the keys into tiles: scores ``[B, H, T, w]`` and values ``[B, H, w, E]``."""
        for start in range(0, scores.shape[3], self.tile):
            yield scores[..., start : start + self.tile], value[:, :, start : start + self.tile]

    def maximum(self, top: Array, part: Array) -> Array:
        """Give the largest score so far."""
        return np.maximum(top, part.max(axis=-1, keepdims=True))

    def base(self, top: Array) -> Array:
        """Give what is subtracted from the scores: their maximum, or 0 while there is none."""
        return np.where(np.isfinite(top), top, 0)

    def exp(self, argument: Array) -> Array:
        """Give the exponential."""
        return np.exp(argument)

    def add(self, weights: Array) -> Array:
        """Sum the weights of a tile."""
        return weights.sum(axis=-1, keepdims=True)

    def weigh(self, weights: Array, values: Array) -> Array:
        """Sum the values of a tile by their weights."""
        return weights @ values

    def rescale_output(self, shrink: Array) -> Array:
        """Give the factor of what was summed before a new maximum."""
        return shrink

    def rescale_total(self, shrink: Array) -> Array:
        """Give the factor of the normaliser before a new maximum."""
        return shrink

    def store_output(self, output: Array) -> Array:
        """Keep the sum of values until the next tile."""
        return output

    def store_total(self, total: Array) -> Array:
        """Keep the normaliser until the next tile."""
        return total

    def divide(self, output: Array, total: Array) -> Array:
        """Normalise, with 0 for a row without keys."""
        return output / np.where(total > 0, total, 1)

    def lse(self, top: Array, total: Array) -> Array:
        """Give the log of the normaliser, ``[B, H, T]``."""
        return (self.base(top) + np.log(total))[..., 0]


class Split(Softmax):
    """The keys in three parts, each by itself, merged at the end: a mixin before ``Softmax``."""

    parts = 3

    def accumulate(self, scores: Array, value: Array, sinks: Array | None) -> tuple[Array, Array, Array]:
        """Do each part by itself, the first one with the sinks, then merge them."""
        found = [
            super(Split, self).accumulate(part, values, None if number else sinks)
            for number, (part, values) in enumerate(self.split(scores, value))
        ]
        return self.merge([(self.store_part(output), top, total) for output, top, total in found])

    def split(self, scores: Array, value: Array) -> Iterator[tuple[Array, Array]]:
        """Cut the keys into parts."""
        for keys in np.array_split(np.arange(scores.shape[3]), self.parts):
            yield scores[..., keys], value[:, :, keys]

    def store_part(self, output: Array) -> Array:
        """Keep the sum of a part until they are merged."""
        return output

    def merge(self, parts: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
        """Bring all parts to one maximum and add them up."""
        top = np.max([part[1] for part in parts], axis=0)
        base = self.base(top)
        shares = [self.share(part_top, base) for _, part_top, _ in parts]
        output = sum(share * part[0] for share, part in zip(shares, parts, strict=True))
        total = sum(share * part[2] for share, part in zip(shares, parts, strict=True))
        return output, top, total

    def share(self, top: Array, base: Array) -> Array:
        """Give the factor of a part whose largest score is ``top``."""
        return np.exp(top - base)
