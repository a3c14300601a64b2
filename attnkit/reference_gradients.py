"""The oracle's gradients: what the derivatives of attention are (A16), written to be read, and how far one may be off.

Everything goes by row, as in ``attnkit.reference``. Only shown keys are ever picked out of the arrays, and nothing
passes through the output of a row that sees none: hidden and dead slots get exact zeros, whatever lies there.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size. Indices: ``b`` sequence, ``h`` query head, ``i`` row, ``j`` key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attnkit.numerics import UNDERFLOW, UNIT_ROUNDOFF, Numerics
from attnkit.reference import IntArray, Problem, Truth
from attnkit.tolerance import FloatArray
from attnkit.tolerance_gradients import RowGradients, row_gradients


class Cotangents(NamedTuple):
    """What a loss gives back for output and log-sum-exp, broadcastable to ``[B, H, T, E]`` and ``[B, H, T]``."""

    output: npt.ArrayLike
    lse: npt.ArrayLike = 0.0


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients with respect to the arguments of a call, or bounds of their errors, in float64.

    Parameters
    ----------
    query, key, value
        ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]``; those of key and value are summed over the group (A9).
    bias
        In the shape in which the bias was given, summed over the axes that it was broadcast along.
    sinks
        ``[H]``, summed over sequences and rows; 0 for a sink of ``-inf``.
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    bias: FloatArray
    sinks: FloatArray


def gradients(truth: Truth, cotangents: Cotangents) -> Gradients:
    """Differentiate ``sum(cotangents.output * output) + sum(cotangents.lse * lse)``.

    With a row's cotangents ``do`` and ``dL``, weights ``p_j``, scores ``s_j`` and products ``u_j = scale * q·k_j``::

        do/ds_j = p_j (v_j - o),  dL/ds_j = p_j,  hence  ds_j = p_j (do·v_j - do·o + dL)
        du_j    = ds_j (1 - (c_j / softcap)^2),  c_j the capped product
        dq      = scale sum_j du_j k_j,  dk_j = scale du_j q,  dv_j = p_j do

    A sink is one more key, whose value is 0.
    """
    problem, (output, lse) = truth.problem, _in_full(cotangents, truth)
    scores, products = np.zeros_like(truth.weights), np.zeros_like(truth.weights)
    above = lse - (output * truth.output).sum(axis=-1)
    for b, h, i in np.ndindex(lse.shape):
        keys = np.flatnonzero(problem.shown[b, h, i])
        reach = problem.value[b, problem.kv_head(h), keys] @ output[b, h, i]
        scores[b, h, i, keys] = truth.weights[b, h, i, keys] * (reach + above[b, h, i])
        products[b, h, i, keys] = scores[b, h, i, keys] * _cap_slope(problem, b, h, i, keys)
    query, key, value = _into_arguments(problem, output, products, products, truth.weights)
    sink_weights = np.exp(problem.sinks[:, np.newaxis] - np.where(truth.lse > -np.inf, truth.lse, 0))
    return Gradients(query, key, value, _summed(scores, problem.bias_shape), (sink_weights * above).sum(axis=(0, 2)))


def gradient_tolerance(
    truth: Truth, cotangents: Cotangents, numerics: Numerics, *, terms: str = "float32", tiles: int | None = None
) -> Gradients:
    """Bound how far the gradients of a correct implementation may be from the truth, element by element.

    To what ``row_gradients`` gives, each sum of ``m`` addends adds ``u_a (f(m) + 3)`` of its size (the sum, two
    products, a conversion), and each result its own rounding and underflow. The gradient of the keys may be taken from
    ``scale * q`` as the profile stores it.

    Parameters
    ----------
    truth, cotangents
        As in ``gradients``.
    numerics
        The profile of the output; the gradients of query, key and value are of the same type.
    terms
        Element type of bias and sinks, and so of their gradients.
    tiles
        As in ``Truth.tolerance``.
    """
    problem, (output, lse) = truth.problem, _in_full(cotangents, truth)
    row = _row_by_row(truth, output, lse, numerics, tiles or truth.usual_tiles)
    over_keys, over_rows, over_bias, over_all = (numerics.u_a * (count + 3) for count in _growths(problem, numerics))
    query, key, value = _into_arguments(
        replace(problem, query=np.abs(problem.query), key=np.abs(problem.key), scale=abs(problem.scale)),
        np.abs(output),
        row.product_error + over_keys * row.product,
        row.product_error + (over_rows + numerics.u_q) * row.product,
        row.weight_error + over_rows * row.weight,
    )
    bias = _summed((row.score_error + over_bias * row.score)[..., :-1], problem.bias_shape)
    sinks = (row.score_error + over_all * row.score)[..., -1].sum(axis=(0, 2))
    exact, stored = gradients(truth, cotangents), (UNIT_ROUNDOFF[terms], UNDERFLOW[terms])
    return Gradients(
        query + numerics.u_o * np.abs(exact.query) + numerics.w_o,
        key + numerics.u_o * np.abs(exact.key) + numerics.w_o,
        value + numerics.u_o * np.abs(exact.value) + numerics.w_o,
        bias + stored[0] * np.abs(exact.bias) + stored[1],
        sinks + stored[0] * np.abs(exact.sinks) + stored[1],
    )


def _in_full(cotangents: Cotangents, truth: Truth) -> tuple[FloatArray, FloatArray]:
    """Give both cotangents in full shape, with 0 for what is constant: the output, or ``-inf``, of an empty row."""
    output, lse = (np.asarray(array, np.float64) for array in cotangents)
    output = np.where(truth.problem.shown.any(axis=-1, keepdims=True), output, 0.0)
    lse = np.where(truth.lse > -np.inf, lse, 0.0)
    return np.broadcast_to(output, truth.output.shape), lse


def _cap_slope(problem: Problem, b: int, h: int, i: int, keys: IntArray) -> FloatArray | float:
    """Give the derivative of the soft-cap at the products of a row, ``[n]``: ``1 - tanh^2``."""
    return 1.0 if problem.softcap is None else 1 - (problem.products(b, h, i, keys) / problem.softcap) ** 2


def _into_arguments(
    problem: Problem, output: FloatArray, to_query: FloatArray, to_key: FloatArray, to_value: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Multiply what comes back, ``[B, H, T, S]``, with keys, queries and cotangents, and sum it over keys and rows."""
    query, key, value = (np.zeros_like(array) for array in (problem.query, problem.key, problem.value))
    for b, h, i in np.ndindex(output.shape[:3]):
        keys, head = np.flatnonzero(problem.shown[b, h, i]), problem.kv_head(h)
        query[b, h, i] = problem.scale * to_query[b, h, i, keys] @ problem.key[b, head, keys]
        key[b, head, keys] += problem.scale * np.outer(to_key[b, h, i, keys], problem.query[b, h, i])
        value[b, head, keys] += np.outer(to_value[b, h, i, keys], output[b, h, i])
    return query, key, value


def _row_by_row(truth: Truth, output: FloatArray, lse: FloatArray, numerics: Numerics, tiles: int) -> RowGradients:
    """Give the magnitudes of what ``row_gradients`` gives, ``[B, H, T, S + 1]``; the last column is the sink's."""
    problem, (*axes, keys) = truth.problem, truth.weights.shape
    whole = RowGradients(*np.zeros((len(RowGradients._fields), *axes, keys + 1)))
    for b, h, i in np.ndindex(lse.shape):
        takes_part = np.flatnonzero([*problem.shown[b, h, i], problem.sinks[h] > -np.inf])
        if takes_part.size:
            facts = truth.facts(b, h, i, tiles)
            row = row_gradients(facts, output[b, h, i], float(lse[b, h, i]), problem.softcap, numerics)
            for array, values in zip(whole, row, strict=True):
                array[b, h, i, takes_part] = np.abs(values)
    return whole


def _growths(problem: Problem, numerics: Numerics) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Give ``f(m)`` of the sums over a row's keys, over a key's rows, along the axes of the bias, and over all rows."""
    batch, heads, rows, _ = problem.shown.shape
    kv_heads = np.array([problem.kv_head(h) for h in range(heads)])
    seen = np.einsum("gh,bhij->bgj", (kv_heads[:, np.newaxis] == kv_heads).astype(np.int64), problem.shown)
    counts = (
        problem.shown.sum(axis=-1, keepdims=True),
        np.append(seen, np.zeros((batch, heads, 1)), axis=-1)[:, :, np.newaxis],
        problem.shown.size / max(1, math.prod(problem.bias_shape)),
        batch * rows,
    )
    growth = np.vectorize(numerics.growth, otypes=[np.float64])
    return growth(counts[0]), growth(counts[1]), growth(counts[2]), growth(counts[3])


def _summed(array: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Sum an array over the axes along which ``shape`` was broadcast to it."""
    full = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(full) if size == 1)
    return np.asarray(array.sum(axis=axes, keepdims=True).reshape(shape))
