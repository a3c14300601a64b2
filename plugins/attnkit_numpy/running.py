"""The online softmax: a block of queries meets its keys tile by tile.

Axes: ``n`` rows, ``w`` keys of a tile, ``E`` value head size. Source: Milakov and Gimelshein, Online normalizer
calculation for softmax (2018); Dao et al., FlashAttention (2022), algorithm 1.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from attnkit_numpy.scores import Array, exponential


class Scratch(threading.local):
    """Buffers that a thread keeps from block to block, one for each element type and use."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, np.dtype[Any]], Array] = {}

    def take(self, name: str, rows: int, columns: int, dtype: np.dtype[Any]) -> Array:
        """Give ``[rows, columns]``, contiguous; what was in it is undefined."""
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.size < rows * columns:
            buffer = self._buffers[name, dtype] = np.empty(rows * columns, dtype)
        return buffer[: rows * columns].reshape(rows, columns)


SCRATCH = Scratch()


# A row whose largest score lies in here keeps the base 0: nothing to subtract, nothing to rescale. Exponentials lose
# nothing by it: exp(24) leaves a factor of 10**28 to the largest float32, exp(-8) one of 10**34 to the smallest.
_LEAST, _MOST = -8, 24


class RunningSoftmax:
    """Output and normaliser of ``n`` rows over the keys seen so far, relative to ``exp(base)`` of each row.

    Parameters
    ----------
    rows, value_dim
        ``n`` and ``E``.
    sink
        The sink's logit, ``-inf`` for none.
    dtype
        Element type of the accumulation.
    """

    def __init__(self, rows: int, value_dim: int, sink: float, dtype: np.dtype[Any]) -> None:
        self.top = np.full((rows, 1), sink, dtype)
        self._least = _LEAST if sink == -np.inf else np.inf  # the LSE of an empty row is the sink to the bit
        self.base = self._base_of(self.top)
        self.total = np.exp(self.top - self.base)
        self.output = SCRATCH.take("output", rows, value_dim, dtype)
        self._started = False

    def add(self, scores: Array, value: Array) -> None:
        """Take in a tile: scores ``[n, w]``, which are overwritten, hidden ones ``-inf``, and values ``[w, E]``."""
        self._raise_base(np.maximum.reduce(scores, axis=1, keepdims=True))
        if self.base.any():
            np.subtract(scores, self.base, out=scores)
        exponential(scores)
        # A product with ones, since BLAS adds up rows over twice as fast as NumPy.
        self.total += np.matmul(scores, np.ones((scores.shape[1], 1), scores.dtype))
        if not self._started:
            np.matmul(scores, value, out=self.output)
            self._started = True
            return
        product = SCRATCH.take("product", scores.shape[0], value.shape[1], scores.dtype)
        self.output += np.matmul(scores, value, out=product)

    def finish(self, output: Array, lse: Array | None) -> None:
        """Write output ``[n, E]`` and LSE ``[n]``."""
        if not self._started:
            self.output[...] = 0
        np.divide(self.output, np.where(self.total == 0, 1, self.total), out=self.output)
        output[...] = self.output
        if lse is not None:
            lse[...] = (self.base + np.log(self.total))[:, 0]

    def _raise_base(self, top: Array) -> None:
        """Take in the largest scores of a tile, and rescale what was gathered below the new base."""
        self.top = np.maximum(self.top, top)
        base = self._base_of(self.top)
        if (base == self.base).all():
            return
        shrink = np.exp(np.where(self.total == 0, -np.inf, self.base) - base)
        self.base = base
        self.total *= shrink
        if self._started:
            self.output *= shrink

    def _base_of(self, top: Array) -> Array:
        """Give what is subtracted from the scores: the largest, unless it is near 0 or no key was seen yet."""
        near = (top >= self._least) & (top <= _MOST)
        return np.where(near | (top == -np.inf), top.dtype.type(0), top)
