"""The error budget: how far a correct implementation may be from the float64 truth, element by element.

The budget is a first-order error analysis of attention, with one term for each place that rounds. It has no constant
that was fitted to an implementation: the constants are those of the declared ``Numerics``, everything else is computed
from the inputs. A common error of all scores of a row cancels in the softmax, hence ``|v_j - o|`` in place of ``|v_j|``
(the derivative of the output by a score is ``do = sum_j p_j ds_j (v_j - o)``).

Axes: ``n`` keys that take part in a row, ``E`` value head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from attnkit.numerics import Numerics

FloatArray = npt.NDArray[np.float64]


# The output terms that come of arithmetic in the accumulation type.
_ACCUMULATION = ("products and score storage", "subtraction and exponential", "sums", "underflow")


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
    query, key, scale
        ``[D]`` and ``[n, D]``, what the products are of, and what they are multiplied with; 0 for a sink.
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
    query: FloatArray
    key: FloatArray
    scale: float
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
            key=np.concatenate([self.key, np.zeros_like(self.query[np.newaxis])]),
        )

    @property
    def head_dim(self) -> int:
        """Length of the dot products, ``D``."""
        return int(self.query.shape[0])

    @property
    def top(self) -> float:
        """The largest score, ``m``."""
        return float(self.score.max(initial=-np.inf))

    @property
    def normaliser(self) -> float:
        """The sum of the exponentials after the largest score was subtracted, ``l``; 1 for a row without keys."""
        return math.exp(self.lse - self.top) if self.score.size else 1.0


class OwnBudget(Protocol):
    """Arithmetic that no profile describes, and that knows its own bounds."""

    @property
    def name(self) -> str:
        """What it is called."""

    def output_terms(self, row: RowFacts) -> Mapping[str, FloatArray]:
        """Bound the error of the output of one row, each ``[E]``, cause by cause."""

    def lse_budget(self, row: RowFacts) -> float:
        """Bound the error of the log of the normaliser of one row."""


Arithmetic: TypeAlias = Numerics | OwnBudget


def output_terms(row: RowFacts, numerics: Arithmetic) -> Mapping[str, FloatArray]:
    """Bound the error of the output of one row, each ``[E]``, cause by cause.

    With ``A = sum_j p_j |v_j|``, ``l = exp(L - m)`` and ``f`` the growth of the numerics, the bounds are::

        u_o |o|                                                     output rounding
        u_p A                                                       weight storage, before the product with the values
        sum_j p_j e_j |v_j - o|                                     products and score storage, see below
        u_a sum_j p_j (2 (m - s_j) + exp_ulps) |v_j - o|            subtraction and exponential
        u_a (f(n) + 3 tiles + 3) (A + |o|)                          sums over keys, rescaling, merging, division
        w_p sum_j |v_j| / l + w_o                                   underflow of weights and output

    The error of a score is::

        e_j = (u_s + u_q + (f(D) + 2) u_a) g_j                      accumulation, storage, rounding of scale*q
            + (u_s + 5 u_a) a_j + 2 u_a g_j (where a_j > 0)         conversions of what is added; two additions
            + tanh_ulps u_a |capped_j|                              soft-cap

    The keys are in this order. A row without keys, which is exactly 0, is left the underflow ``w_o`` alone.
    """
    if not isinstance(numerics, Numerics):
        return numerics.output_terms(row)
    size, spread = np.abs(row.output), np.abs(row.value - row.output)
    magnitude = row.weight @ np.abs(row.value)
    distance = 2 * (row.top - row.score) + numerics.exp_ulps
    sums = numerics.growth(row.score.size) + 3 * row.tiles + 3
    lost = np.abs(row.value).sum(axis=0) / row.normaliser
    return {
        "output rounding": numerics.u_o * size,
        "weight storage": numerics.u_p * magnitude,
        "products and score storage": (row.weight * score_error(row, numerics)) @ spread,
        "subtraction and exponential": numerics.u_a * (row.weight * distance) @ spread,
        "sums": numerics.u_a * sums * (magnitude + size),
        "underflow": numerics.w_p * lost + numerics.w_o,
    }


def output_budget(row: RowFacts, numerics: Arithmetic) -> FloatArray:
    """Bound the error of the output of one row, ``[E]``: the sum of its ``output_terms``."""
    tau: FloatArray = np.sum(list(output_terms(row, numerics).values()), axis=0)
    return tau


def output_deviation(row: RowFacts, numerics: Numerics) -> FloatArray:
    """Predict the standard deviation of the error of one row, ``[E]``, where every rounding is on its own.

    A rounding to nearest is off by anything up to half a spacing with equal chance, which deviates by ``1 / sqrt(3)``
    of it. So the deviation is, with ``spacing`` that of the output's element type at ``o``, the root of::

        (spacing / 2)^2 / 3  +  u_p^2 sum_j p_j^2 v_j^2 / 3  +  rest^2

    Errors of the accumulation are not told apart, their bounds are taken in full: ``rest`` is the sum of the other
    ``output_terms``, of ``Numerics.at_random``. So no correct implementation lies above it by more than chance.
    """
    terms = output_terms(row, numerics.at_random())
    rest = np.sum([terms[name] for name in _ACCUMULATION], axis=0)
    stored = numerics.u_p**2 * (row.weight**2 @ row.value**2)
    deviation: FloatArray = np.sqrt((_spacing(row.output, numerics) ** 2 / 4 + stored) / 3 + rest**2)
    return deviation


def lse_budget(row: RowFacts, numerics: Arithmetic) -> float:
    """Bound the error of the log of the normaliser of one row.

    For a row without keys, which is exactly ``-inf``, it is 0. For others it is::

        sum_j p_j e_j                                               scores, as in ``output_budget``
        + u_a (f(n) + 3 tiles + 8)                                  exponentials, sum, rescaling, logarithm
        + 2 u_a (|L| + |m|) + u_a |L|                               maximum subtracted and added back, result stored
    """
    if not isinstance(numerics, Numerics):
        return numerics.lse_budget(row)
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


def _spacing(output: FloatArray, numerics: Numerics) -> FloatArray:
    """Give the distance between neighbours of the output's element type, which is ``2 u_o`` at 1."""
    _, exponent = np.frexp(np.maximum(np.abs(output), numerics.w_o))
    spacing: FloatArray = np.ldexp(2 * numerics.u_o, exponent - 1)
    return spacing
