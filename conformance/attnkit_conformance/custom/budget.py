"""Budget: the bounds of one query row, from the errors of the stages.

Let every weight ``w_j`` come out as ``w_j (1 + h_j)`` in common units, which a wrong maximum does not matter to. Then
``|o' - o| <= sum_j p_j |h_j| |v_j - o| / (1 - sum_j p_j |h_j|)``: it is bounded, not approximated.

Axes: ``n`` keys of a row, ``D`` key head size, ``E`` value head size.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict

import attnkit as ak
from attnkit.numerics import UNDERFLOW, UNIT_ROUNDOFF
from attnkit.tolerance import FloatArray, RowFacts
from attnkit_conformance.custom.stages import CODE, Stage

_LOG2E: Final = 1.4427  # from above 1.44269...


class Stages(BaseModel):
    """What an implementation does, see ``attnkit_conformance.custom.declaration``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Stage = Stage()
    product: Stage = Stage()
    score: Stage = Stage()
    exp: Stage = Stage()
    accumulator: Stage = Stage()
    reciprocal: Stage = Stage()
    weight: Stage = Stage()
    output: Stage = Stage()
    logarithm: Stage = Stage()


class Budget:
    """The bounds of one row.

    Parameters
    ----------
    row
        What it is computed from.
    stages, dtype
        The implementation, and the element type of its results.
    before
        Weights are divided before they are multiplied with values.
    tile
        Keys whose scores are known before the first is weighted.
    """

    def __init__(self, row: RowFacts, stages: Stages, dtype: str, *, before: bool, tile: int) -> None:
        plain = {name: np.asarray(getattr(row, name), np.float64) for name in _ARRAYS}  # golden vectors bring objects
        self._weight, self._score, self._added, self._capped = (plain[name] for name in _ARRAYS[:4])
        self._value, self._output, self._query, self._key = (plain[name] for name in _ARRAYS[4:])
        self._row, self._stages, self._before = row, stages, before
        self._unit, self._lost = UNIT_ROUNDOFF[dtype], UNDERFLOW[dtype]
        self._lse_unit = UNIT_ROUNDOFF["float64" if dtype == "float64" else "float32"]
        self._rescalings = -(-self._score.size // tile) - 1 if self._score.size else 0
        self._normaliser = float(row.normaliser)

    def output_terms(self) -> dict[str, FloatArray]:
        """Bound the error of the output, stage by stage, each ``[E]``."""
        held: FloatArray = self._unit * np.abs(self._output) + self._lost
        if not self._score.size:  # exactly 0
            return {"output": held}
        terms = self._weighted()
        terms["output"] = self._stages.output.error("output", self._output, before=sum(terms.values())) + held
        return terms

    def lse(self) -> float:
        """Bound the error of the log-sum-exp; 0 without keys, where it is exactly ``-inf``."""
        if not self._score.size:
            return 0.0
        moved = _moved(self._relative) * self._relative
        lse = np.array([float(self._row.lse)])
        stored = self._stages.logarithm.error("logarithm", lse, before=moved)
        return float(moved + stored[0] + self._lse_unit * abs(lse[0]))

    def _weighted(self) -> dict[str, FloatArray]:
        """Bound what comes of weights, their sum and the sum of values, ``[E]`` each, of all orders."""
        size, away = np.abs(self._output), np.abs(self._value - self._output)
        magnitude, unit = np.abs(self._value), 1.0 if self._before else self._normaliser
        parts, off = self._weight * unit, self._off * unit
        stored = self._stages.weight.error("weight", parts, before=off)
        terms = {name: (share[:, None] * away).sum(axis=0) for name, share in self._shares.items()}
        terms["input"] = terms["input"] + (self._weight[:, None] * self._value_error).sum(axis=0)
        terms["weight"] = (stored[:, None] * np.maximum(magnitude, away)).sum(axis=0) / unit
        terms["accumulator"] = self._sums_of_values(parts, off + stored) / unit + size * self._normaliser_share
        terms["reciprocal"] = size * self._reciprocal_share
        growth = _moved(self._relative + self._reciprocal_share + float(stored.sum()) / unit)
        return {name: term * growth for name, term in terms.items()}

    def _sums_of_values(self, parts: FloatArray, off: FloatArray) -> FloatArray:
        """Bound the error of the sums of values, ``[E]``, weighted by ``parts [n]`` that are ``off [n]``."""
        stage, magnitude = self._stages.accumulator, np.abs(self._value)
        sums, total = ((parts[:, None] * numbers).sum(axis=0) for numbers in (self._value, magnitude))
        moved = (off[:, None] * magnitude + (parts + off)[:, None] * self._value_error).sum(axis=0)
        error = stage.sum_error(total + moved, self._additions)
        most = magnitude.sum(axis=0) if self._rescalings else total  # relative to a maximum that was not the last
        stage.check_sums("accumulator", sums, most, error + moved)
        return error

    @property
    def _relative(self) -> float:
        """Bound the error of the sum of the exponentials relative to it, to first order."""
        return sum(float(share.sum()) for share in self._shares.values()) + self._normaliser_share

    @property
    def _off(self) -> FloatArray:
        """Bound the errors of weights relative to their sum, ``[n]``, of all orders."""
        relative = self._relative + self._reciprocal_share
        off = sum(self._shares.values(), self._weight * relative) * _moved(relative)
        return np.minimum(off, 1 / self._normaliser)  # no exponential is above 1

    @cached_property
    def _normaliser_share(self) -> float:
        """Bound the error of summing up the exponentials, relative to their sum."""
        total = np.array([self._normaliser])
        off = min(total[0] * sum(float(share.sum()) for share in self._shares.values()), float(self._score.size))
        error = self._stages.accumulator.sum_error(total + off, self._additions)
        most = np.array([float(self._score.size)]) if self._rescalings else total
        self._stages.accumulator.check_sums("accumulator", total, most + off, error + off)
        return float(error[0] / self._normaliser)

    @cached_property
    def _reciprocal_share(self) -> float:
        """Bound the error of the reciprocal, relative to it."""
        inverse = np.array([1 / self._normaliser])
        off = inverse * self._relative * _moved(self._relative)
        return float((self._stages.reciprocal.error("reciprocal", inverse, before=off) / inverse)[0])

    @property
    def _additions(self) -> int:
        """Roundings of a sum: one for each key, two for each time that it is scaled anew."""
        return int(self._score.size) + 2 * self._rescalings

    @cached_property
    def _shares(self) -> dict[str, FloatArray]:
        """Bound the errors of weights relative to their sum, ``[n]``, by the stage that they come from."""
        given, product, score = self._score_errors
        total = given + product + score
        grown = _grown(total)
        common = 1 + _grown(total[self._score == self._score.max()]).max()  # of the largest score, in all weights
        parts = self._weight * self._normaliser
        off = np.minimum(_known(parts * ((1 + grown) * common - 1)), 1.0)  # no exponential is above 1
        lost = (1 + self._rescalings) * self._stages.exp.error("exp", parts, before=off) * common / self._normaliser
        rates = [np.where(total > 0, part / total, 0.0) for part in (given, product, score)]
        moved = [np.where(rate > 0, _known(self._weight * rate * grown), 0.0) for rate in rates]
        return {"input": moved[0], "product": moved[1], "score": moved[2], "exp": lost + self._cut_off}

    @cached_property
    def _score_errors(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Bound the errors of the scores, ``[n]``, that come from inputs, from products, and from the scores."""
        stages, scale, distance = self._stages, abs(self._row.scale), self._score.max() - self._score
        query, key = np.abs(self._query), np.abs(self._key)
        own, other = _input(stages.input, self._query), _input(stages.input, self._key)
        given = (key * own + query * other + own * other).sum(axis=-1)
        dots, totals = (self._key * self._query).sum(axis=-1), (key * query).sum(axis=-1) + given
        product = stages.product.sum_error(totals, self._query.size)
        stages.product.check_sums("product", dots, totals, given + product)
        before, stored = scale * (given + product), np.zeros_like(dots)
        products = np.where(self._key.any(axis=-1), self._row.scale * dots, self._score)  # a sink is no product
        for numbers, there in (
            (products, True),
            (self._capped, self._capped > 0),
            (self._added, self._added > 0),
            (self._score, self._added > 0),
        ):
            stored = stored + np.where(there, stages.score.error("score", numbers, before=before + stored), 0.0)
        if self._subtracts:
            stored = stored + stages.score.rounded(distance + before + stored)
        return scale * given, scale * product, stored

    @property
    def _subtracts(self) -> bool:
        """Whether subtracting the largest score rounds: fixed point does it exactly."""
        return self._stages.score.format.kind in ("float", "block")

    @property
    def _cut_off(self) -> FloatArray:
        """Bound the weights, relative to their sum, of scores that are too far from the largest to be held."""
        low, _ = self._stages.score.format.range
        distance = self._score.max() - self._score
        if self._stages.score.overflow == "wrap" and (distance > -low).any() and low < 0:
            return np.full_like(distance, np.inf)
        least = np.ldexp(1.0, -int(min(-low * 1.4426, 1000.0)))  # exp(low) is less
        cut: FloatArray = np.where(distance > -low, least / self._normaliser, 0.0)
        return cut

    @cached_property
    def _value_error(self) -> FloatArray:
        return _input(self._stages.input, self._value)


_ARRAYS: Final = ("weight", "score", "added", "capped", "value", "output", "query", "key")


def _input(stage: Stage, numbers: FloatArray) -> FloatArray:
    """Bound the error of storing what is given; 0 is stored as 0."""
    bound: FloatArray = np.where(numbers == 0, 0.0, stage.error("input", numbers))
    return bound


def _known(bound: FloatArray) -> FloatArray:
    """Let what is no number be infinite: no weight at all times an error without a bound."""
    return np.nan_to_num(bound, nan=np.inf, posinf=np.inf)


def _grown(error: FloatArray) -> FloatArray:
    """Bound ``exp(error) - 1`` from above, by arithmetic that no maths library has a part in."""
    small = error / (1 - error)
    large = np.ldexp(1.0, np.ceil(np.clip(np.nan_to_num(error, nan=2000.0), 0, 2000) * _LOG2E).astype(np.int64))
    bound: FloatArray = np.where(error < 0.5, small, large)
    return bound


def _moved(share: float) -> float:
    """Bound by how much more than to first order a quotient moves whose parts move by ``share`` in all.

    With ``x`` the share, weights move by ``x + x^2`` at most, as two errors meet in each, and what they are divided by
    moves as much: ``(1 + x) / (1 - 2 x)``. Nothing can be said from a quarter on.
    """
    return (1 + share) / (1 - 2 * share) if share < 0.25 else 2.0**500


def assert_telling(tau: FloatArray, value: FloatArray, dominant: Any) -> None:
    """Refuse a bound that would let anything pass: above 5 % of the largest value.

    Raises
    ------
    UnsupportedError
        With the stage that the bound is mostly made of.
    """
    seen = np.abs(value[np.isfinite(value)])
    most = 0.05 * float(seen.max(initial=0.0))
    bound = _known(tau)
    if seen.size and bound.size and (bound > most).any():
        at = np.unravel_index(int(bound.argmax()), bound.shape)
        told = f"{bound[at]:.3g} of {most:.3g} at {list(map(int, at))}, mostly of the stage {dominant(at)!r}"
        reason = ak.Reason(CODE, "tau", "at most 5 % of max|value|", told, "vacuous; widen that stage")
        raise ak.UnsupportedError("the call cannot be judged by these numerics:", {"numerics": (reason,)})
