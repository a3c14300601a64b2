"""The online softmax: a block of queries meets its keys tile by tile.

Axes: ``n`` rows, ``w`` keys of a tile, ``E`` value head size. Source: Milakov and Gimelshein, Online normalizer
calculation for softmax (2018); Dao et al., FlashAttention (2022), algorithm 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnkit_numpy.scores import Array, exponential
from attnkit_numpy.scratch import SCRATCH

# While the largest score of a row lies in here, nothing is subtracted and nothing rescaled. Exponentials lose nothing
# by it: exp(24) leaves a factor of 10**28 to the largest float32, exp(-8) one of 10**34 to the smallest.
_LEAST, _MOST = -8.0, 24.0


class RunningSoftmax:
    """Output and normaliser of some rows over the keys seen so far, relative to ``exp(base)`` of each row.

    Parameters
    ----------
    sink
        The sink's logit, ``-inf`` for none.
    dtype
        Element type of the accumulation.
    """

    def __init__(self, sink: float, dtype: np.dtype[Any]) -> None:
        self._sink = sink
        # Stands for the maximum over no keys, so that differences to it are never infinity minus infinity.
        self._top: Array | float = max(sink, float(np.finfo(dtype).min))
        # With a sink the base is the largest score itself: the LSE of an empty row is then the sink, to the bit.
        self._near = (_LEAST, _MOST) if sink == -np.inf else (0.0, 0.0)
        self._raised = False
        self._base: Array | None = None
        self._total: Array | None = None
        self._output: Array | None = None

    def add(self, scores: Array, value: Array) -> None:
        """Take in a tile: scores ``[n, w]``, which are overwritten, hidden ones ``-inf``, and values ``[w, E]``."""
        self._top = np.maximum(self._top, np.maximum.reduce(scores, axis=1, keepdims=True))
        base = self._top - self._top.clip(*self._near)
        raised = bool(base.any())
        if raised:
            np.subtract(scores, base, out=scores)
        exponential(scores)
        # A product with ones, since BLAS adds up rows over twice as fast as NumPy.
        total = np.matmul(scores, np.ones((scores.shape[1], 1), scores.dtype))
        if self._output is None or self._total is None:
            self._total = total if self._sink == -np.inf else total + np.exp(self._sink - base)
            self._output = SCRATCH.take("output", len(scores), value.shape[1], scores.dtype)
            np.matmul(scores, value, out=self._output)
        else:
            if raised or self._raised:
                shrink = np.exp(self._base - base)
                self._total *= shrink
                self._output *= shrink
            self._total += total
            product = SCRATCH.take("product", len(scores), value.shape[1], scores.dtype)
            self._output += np.matmul(scores, value, out=product)
        self._base, self._raised = base, raised

    def finish(self, output: Array, lse: Array | None) -> None:
        """Write output ``[n, E]`` and LSE ``[n]``."""
        if self._output is None or self._total is None:
            output[...] = 0
            if lse is not None:
                lse[...] = self._sink
            return
        if lse is not None:
            lse[...] = (self._base + np.log(self._total))[:, 0]
        self._total[self._total == 0] = 1
        np.divide(self._output, self._total, out=output, casting="same_kind")
