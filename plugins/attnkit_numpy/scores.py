"""From raw products to softmax weights: the steps that every path has in common.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``n`` rows, ``w`` keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnkit import AttentionRequest, Operands

Array = np.ndarray[Any, Any]

_LOG2_E = math.log2(math.e)

# Beyond these a factor is no ordinary float32 number: its product with another may be, so it is taken in float64.
_LEAST, _MOST = 2.0**-100, 2.0**100


def _has_fast_exp2() -> bool:
    """Tell whether NumPy takes float32 ``exp2`` from SVML, for AVX-512: it is then over twice as fast as ``exp``.

    With AVX2 alone ``exp2`` is a loop over the C library and takes twice the time of ``exp``.
    """
    try:
        found = np.lib.introspect.opt_func_info(func_name="^exp2$", signature="float32")
    except AttributeError:  # NumPy before 2.1
        return False
    targets = [str(loop["current"]) for kinds in found.values() for loop in kinds.values()]
    return any(name in target for target in targets for name in ("AVX512", "X86_V4"))


FAST_EXP2 = _has_fast_exp2()


def exponential(scores: Array) -> None:
    """Replace scores, from which the maximum is already subtracted, by their exponentials, in place."""
    if FAST_EXP2 and scores.dtype == np.float32:
        np.multiply(scores, _LOG2_E, out=scores)
        np.exp2(scores, out=scores)
    else:
        np.exp(scores, out=scores)


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


def add_and_hide(scores: Array, operands: Operands, request: AttentionRequest) -> None:
    """Add bias and ALiBi to scores ``[B, H, T, S]`` and replace those of hidden keys by ``-inf``, in place."""
    bias = request.score_bias(operands)
    if bias is not None:
        np.add(scores, bias, out=scores)
    np.copyto(scores, -np.inf, where=np.logical_not(request.visible(operands)))


def softmax(scores: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Turn scores ``[..., n, w]`` into weights ``exp(score - top)`` in place; hidden scores are ``-inf``.

    Returns
    -------
    top, total
        ``[..., n, 1]``: the largest score (0 in a row without keys), and the sum of the weights. The sinks,
        broadcastable to the same shape, take part in both.
    """
    top = np.maximum.reduce(scores, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks)
    top[top == -np.inf] = 0
    np.subtract(scores, top, out=scores)
    exponential(scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - top)
    return top, total
