"""A device in software, bit by bit: attention as numerics of one's own declare it, one rounding after the other.

It knows nothing of bounds. Every number is held in float64, which holds all of these formats exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attnkit_conformance.custom import Block, CustomNumerics, Exact, Fixed, Floating, Stage

Step = Callable[[np.ndarray], np.ndarray]


@dataclass
class Device:
    """A device; each step may be replaced by a wrong one.

    Called with a case it gives the output, and keeps the log-sum-exp in ``lse``. Roundings that may go either way go as
    ``bias`` says where it is given.
    """

    numerics: CustomNumerics
    exponential: Step = np.exp
    inverse: Step = lambda total: 1 / total
    wrong: dict[str, Step] = field(default_factory=dict)
    seed: int = 0
    bias: float | None = None

    def __call__(self, case) -> np.ndarray:
        self._dice = np.random.default_rng(self.seed)
        problem = case.truth.problem
        output = np.zeros(case.output_shape)
        self.lse = np.full(case.output_shape[:3], -np.inf, np.float64 if case.dtype == "float64" else np.float32)
        for b, h, i in np.ndindex(output.shape[:3]):
            keys = np.flatnonzero(problem.shown[b, h, i])
            if "keys" in self.wrong:
                keys = self.wrong["keys"](keys)
            head = problem.kv_head(h)
            output[b, h, i], self.lse[b, h, i] = self._row(
                problem.query[b, h, i],
                problem.key[b, head, keys],
                problem.value[b, head, keys],
                problem.scale,
                problem.softcap,
                problem.added(b, h, i, keys),
                float(problem.sinks[h]),
            )
        return output.astype(np.dtype(case.dtype))

    def _row(self, query, key, value, scale, softcap, added, sink):
        stages, at = self.numerics.stages, self._at
        if not len(key) and sink == -np.inf:
            return np.zeros(value.shape[1]), -np.inf
        query, key, value = at("input", query), at("input", key), at("input", value)
        dots = np.array([self._sum(stages.product, query * row) for row in key])
        score = at("score", scale * dots) if len(key) else np.zeros(0)
        if softcap is not None:
            score = at("score", softcap * np.tanh(score / softcap))
        if added.any():
            score = at("score", score + at("score", added.sum(axis=0)))
        if sink > -np.inf:
            score, value = np.append(score, at("score", np.array([sink]))), np.vstack([value, np.zeros(value.shape[1])])
        output, total = self._weighed(score, value)
        lse = at("logarithm", score.max() + np.log(total))[0]
        if self.numerics.division == "after":
            output = output * at("reciprocal", self.inverse(total))
        return at("output", output), lse

    def _weighed(self, score, value):
        at, stages = self._at, self.numerics.stages
        size = self.numerics.keys_per_tile or len(score)
        top, total, sums = -np.inf, np.zeros(1), np.zeros(value.shape[1])
        for first in range(0, len(score), size):
            part = score[first : first + size]
            new = max(top, part.max())
            if first:
                shrink = at("exp", self.exponential(self._difference(np.array([top]), new)))
                total, sums = (self._round(stages.accumulator, shrink * number) for number in (total, sums))
            top = new
            raised = at("exp", self.exponential(self._difference(part, top)))
            total = self._continued(stages.accumulator, total, raised[:, None])
            if self.numerics.division == "before":
                raised = raised * at("reciprocal", self.inverse(total))
            weights = at("weight", raised)
            sums = self._continued(stages.accumulator, sums, weights[:, None] * value[first : first + size])
        return sums, total

    def _difference(self, score, top):
        stage = self.numerics.stages.score
        low, _ = stage.format.range
        return np.maximum(self._round(stage, score - top), low)

    def _at(self, name: str, numbers: np.ndarray) -> np.ndarray:
        if name in self.wrong:
            numbers = self.wrong[name](numbers)
        return self._round(getattr(self.numerics.stages, name), numbers)

    def _sum(self, stage: Stage, terms: np.ndarray) -> float:
        return float(self._continued(stage, np.zeros(1), terms[:, None])[0])

    def _continued(self, stage: Stage, total: np.ndarray, terms: np.ndarray) -> np.ndarray:
        for term in terms:
            total = self._round(stage, total + self._round(stage, term))
        return total

    def _round(self, stage: Stage, numbers: np.ndarray) -> np.ndarray:
        numbers = np.asarray(numbers, np.float64)
        match stage.format:
            case Exact():
                return numbers
            case Fixed(fraction=fraction):
                step = np.full(numbers.shape, 2.0**-fraction)
            case Floating(mantissa=mantissa, exponent=bits, subnormals=subnormals):
                _, exponent = np.frexp(numbers)
                least = 2 - 2 ** (bits - 1)
                if not subnormals:
                    numbers = np.where(np.abs(numbers) < np.ldexp(1.0, least), 0.0, numbers)
                step = np.ldexp(1.0, np.maximum(exponent - 1, least) - mantissa)
            case Block(mantissa=mantissa, block=block, exponent=bits):
                step = np.empty(numbers.shape)
                ends = np.empty(numbers.shape)
                for first in range(0, numbers.shape[-1], block):
                    part = slice(first, first + block)
                    largest = np.abs(numbers[..., part]).max(axis=-1, keepdims=True)
                    exponent = np.maximum(np.frexp(largest)[1], 1 - 2 ** (bits - 1))
                    step[..., part] = np.ldexp(1.0, exponent - mantissa)
                    ends[..., part] = np.ldexp(1.0, exponent) - step[..., part]
                return np.clip(self._nearby(stage, numbers / step) * step, -ends, ends)
        low, high = stage.format.range
        rounded = self._nearby(stage, numbers / step) * step
        if stage.overflow == "saturate":
            return np.clip(rounded, low, high)
        outside = (rounded < low) | (rounded > high)
        return np.where(outside, (rounded - low) % (high + step - low) + low, rounded)

    def _nearby(self, stage: Stage, numbers: np.ndarray) -> np.ndarray:
        match stage.rounding:
            case "nearest":
                return np.rint(numbers)
            case "truncate":
                return np.trunc(numbers)
            case "floor":
                return np.floor(numbers)
            case "ceil":
                return np.ceil(numbers)
        return np.floor(numbers + (self._dice.random(numbers.shape) if self.bias is None else self.bias))
