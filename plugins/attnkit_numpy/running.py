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


class RunningSoftmax:
    """Output and normaliser of ``n`` rows over the keys seen so far.

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
        self.total = np.full((rows, 1), sink > -np.inf, dtype)
        self.output = SCRATCH.take("output", rows, value_dim, dtype)
        self._started = False

    def add(self, scores: Array, value: Array) -> None:
        """Take in a tile: scores ``[n, w]``, which are overwritten, hidden ones ``-inf``, and values ``[w, E]``."""
        top = np.maximum(self.top, np.maximum.reduce(scores, axis=1, keepdims=True))
        base = _base(top)
        np.subtract(scores, base, out=scores)
        exponential(scores)
        shrink = np.exp(self.top - base)
        self.total *= shrink
        # A product with ones, since BLAS adds up rows over twice as fast as NumPy.
        self.total += np.matmul(scores, np.ones((scores.shape[1], 1), scores.dtype))
        self.top = top
        if not self._started:
            np.matmul(scores, value, out=self.output)
            self._started = True
            return
        product = SCRATCH.take("product", scores.shape[0], value.shape[1], scores.dtype)
        np.matmul(scores, value, out=product)
        self.output *= shrink
        self.output += product

    def finish(self, output: Array, lse: Array | None) -> None:
        """Write output ``[n, E]`` and LSE ``[n]``."""
        if not self._started:
            self.output[...] = 0
        np.divide(self.output, np.where(self.total == 0, 1, self.total), out=self.output)
        output[...] = self.output
        if lse is not None:
            lse[...] = (_base(self.top) + np.log(self.total))[:, 0]


def _base(top: Array) -> Array:
    """Give what is subtracted from the scores: the maximum, or 0 where no key was seen yet."""
    return np.where(top == -np.inf, top.dtype.type(0), top)
