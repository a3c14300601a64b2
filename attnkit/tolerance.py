"""The error budget: how far a correct implementation may be from the float64 truth, element by element.

The budget is a first-order error analysis of attention, with one term for each place that rounds. It has no constant
that was fitted to an implementation: the constants are those of the declared ``Numerics``, everything else is computed
from the inputs. A common error of all scores of a row cancels in the softmax, hence ``|v_j - o|`` in place of ``|v_j|``
(the derivative of the output by a score is ``do = sum_j p_j ds_j (v_j - o)``).

Axes: ``n`` keys that take part in a row, ``E`` value head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from attnkit.numerics import Numerics

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Tolerance:
    """Largest absolute error allowed, element by element.

    Parameters
    ----------
    output
        ``[B, H, T, E]``.
    lse
        ``[B, H, T]``; 0 where the truth is ``-inf``.
    """

    output: FloatArray
    lse: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class RowFacts:
    """What the budget of one query row is computed from.

    Parameters
    ----------
    weight
        ``[n]``, softmax weights ``p_j``.
    score
        ``[n]``, final scores ``s_j``.
    size
        ``[n]``, sums of magnitudes behind a product: ``g_j = |scale| * sum_c |q_c k_jc|``; 0 for a sink.
    added
        ``[n]``, magnitudes ``a_j`` of what is added to it: ``|bias_j| + |alibi_j|``, or ``|sink|``.
    capped
        ``[n]``, magnitude of the score right after the soft-cap; 0 without one.
    value
        ``[n, E]``, values ``v_j``.
    output
        ``[E]``, true output ``o``.
    lse
        True natural log of the normaliser, ``L``.
    head_dim
        Length of the dot products, ``D``.
    tiles
        Into how many parts the keys may be cut: tiles and splits together.
    """

    weight: FloatArray
    score: FloatArray
    size: FloatArray
    added: FloatArray
    capped: FloatArray
    value: FloatArray
    output: FloatArray
    lse: float
    head_dim: int
    tiles: int

    def with_sink(self, sink: float) -> RowFacts:
        """Let a sink take part: one more key, whose score is ``sink`` and whose value is 0."""
        return replace(
            self,
            weight=np.append(self.weight, np.exp(sink - self.lse)),
            score=np.append(self.score, sink),
            size=np.append(self.size, 0.0),
            added=np.append(self.added, abs(sink)),
            capped=np.append(self.capped, 0.0),
            value=np.concatenate([self.value, np.zeros_like(self.output[np.newaxis])]),
        )

    @property
    def top(self) -> float:
        """The largest score, ``m``."""
        return float(self.score.max())


def output_budget(row: RowFacts, numerics: Numerics) -> FloatArray:
    """Bound the error of the output of one row, ``[E]``.

    With ``A = sum_j p_j |v_j|``, ``l = exp(L - m)`` and ``f`` the growth of the numerics, the bound is::

        u_o |o|                                                     rounding of the output
        + u_p A                                                     weights stored before the product with the values
        + sum_j p_j e_j |v_j - o|                                   scores, see below
        + 2 u_a sum_j p_j (m - s_j) |v_j - o|                       argument of the exponential
        + exp_ulps u_a sum_j p_j |v_j - o|                          the exponential
        + u_a (f(n) + 3 tiles + 3) (A + |o|)                        sums over keys, rescaling, merging, division
        + w_p sum_j |v_j| / l + w_o                                 underflow of weights and output

    The error of a score is::

        e_j = (u_s + u_q + (f(D) + 2) u_a) g_j                      accumulation, storage, rounding of scale*q
            + (u_s + 5 u_a) a_j + 2 u_a g_j (where a_j > 0)         conversions of what is added; two additions
            + tanh_ulps u_a |capped_j|                              soft-cap
    """
    if not row.score.size:
        return np.full_like(row.output, numerics.w_o)
    spread = np.abs(row.value - row.output)
    magnitude = row.weight @ np.abs(row.value)
    per_key = score_error(row, numerics)
    per_key += numerics.u_a * (2 * (row.top - row.score) + numerics.exp_ulps)
    sums = numerics.u_a * (numerics.growth(row.score.size) + 3 * row.tiles + 3)
    underflow = numerics.w_p * np.abs(row.value).sum(axis=0) / math.exp(row.lse - row.top) + numerics.w_o
    rounding = numerics.u_o * np.abs(row.output) + numerics.u_p * magnitude
    tau: FloatArray = rounding + (row.weight * per_key) @ spread + sums * (magnitude + np.abs(row.output)) + underflow
    return tau


def lse_budget(row: RowFacts, numerics: Numerics) -> float:
    """Bound the error of the log of the normaliser of one row.

    For a row without keys, which is exactly ``-inf``, it is 0. For others it is::

        sum_j p_j e_j                                               scores, as in ``output_budget``
        + u_a (f(n) + 3 tiles + 8)                                  exponentials, sum, rescaling, logarithm
        + 2 u_a (|L| + |m|) + u_a |L|                               maximum subtracted and added back, result stored
    """
    if not row.score.size:
        return 0.0
    scores = float(row.weight @ score_error(row, numerics))
    sums = numerics.growth(row.score.size) + 3 * row.tiles + 8
    return scores + numerics.u_a * (sums + 2 * (abs(row.lse) + abs(row.top)) + abs(row.lse))


def score_error(row: RowFacts, numerics: Numerics) -> FloatArray:
    """Bound the error of each score, ``[n]``."""
    dot_product = numerics.u_s + numerics.u_q + (numerics.growth(row.head_dim) + 2) * numerics.u_a
    additions = (numerics.u_s + 5 * numerics.u_a) * row.added + 2 * numerics.u_a * row.size * (row.added > 0)
    error: FloatArray = dot_product * row.size + additions + numerics.tanh_ulps * numerics.u_a * row.capped
    return error
