"""From raw products to softmax weights: the steps that every path has in common.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``n`` rows, ``w`` keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Beyond these a factor is no ordinary float32 number: its product with another may be, so it is taken in float64.
_LEAST, _MOST = 2.0**-100, 2.0**100


def cap(scores: Array, softcap: float) -> None:
    """Replace scores by ``softcap * tanh(scores / softcap)``, in place."""
    if not _LEAST < softcap < _MOST:
        scores[...] = softcap * np.tanh(scores.astype(np.float64) / softcap)
        return
    np.divide(scores, softcap, out=scores)
    np.tanh(scores, out=scores)
    np.multiply(scores, softcap, out=scores)


def multiply(scores: Array, scale: float) -> None:
    """Multiply scores by ``scale``, in place."""
    if _LEAST < abs(scale) < _MOST:
        np.multiply(scores, scale, out=scores)
    else:
        scores[...] = scores.astype(np.float64) * scale


def softmax(scores: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Turn scores ``[..., n, w]`` into weights ``exp(score - top)`` in place; hidden scores are ``-inf``.

    Returns
    -------
    top, total
        ``[..., n, 1]``: the largest score (0 in a row without keys), and the sum of the weights. The sinks,
        broadcastable to the same shape, take part in both.
    """
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks)
    top[np.isneginf(top)] = 0
    np.subtract(scores, top, out=scores)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - top)
    return top, total
