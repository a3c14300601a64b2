"""The oracles agree: three texts that say what attention is, written apart, on shapes small enough for the slowest.

``attnkit.reference.attention`` is dense and in float64, ``streaming_attention`` takes one key at a time, and here is a
third one in ``mpmath``, with fifty digits, which takes from the first who sees whom.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from attnkit import reference
from attnkit_conformance.cases import Array, Case
from attnkit_conformance.checks.edges import EMPTY_ROWS, SUNK_ROWS
from attnkit_conformance.checks.numerics import OPTIONS
from attnkit_conformance.structures import STRUCTURES

CLOSE: Final = 1e-12
"""How far apart two oracles may be, relative to the magnitudes that an output is a mean of, or to the LSE."""
DIGITS: Final = 50

SMALL = [case for case in (*STRUCTURES, *EMPTY_ROWS, *SUNK_ROWS) if case.queries * case.keys <= 120]
FEW = [*SMALL[::9], *(case for case in OPTIONS if "everything" in case.label)]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two oracles are apart.

    Attributes
    ----------
    oracles
        Their names.
    cases
        How many cases both were asked.
    apart
        The largest difference.
    missing
        Why they could not be asked; empty where they were.
    """

    oracles: str
    cases: int
    apart: float
    missing: str = ""

    @property
    def ok(self) -> bool:
        """Both were asked, and are close."""
        return not self.missing and self.cases > 0 and self.apart <= CLOSE

    def __str__(self) -> str:
        said = self.missing or f"{self.apart:.1e} apart on {self.cases} cases, at most {CLOSE:g} allowed"
        return f"oracles {self.oracles}: {said}"


def agreements() -> Iterator[Agreement]:
    """Compare the dense oracle with each of the others."""
    yield Agreement("dense and streaming", len(SMALL), max(map(_streaming, SMALL)))
    if find_spec("mpmath") is None:
        yield Agreement("dense and mpmath", 0, 0.0, "mpmath is not installed; pip install mpmath")
    else:
        yield Agreement("dense and mpmath", len(FEW), max(map(_exact, FEW)))


def _streaming(case: Case) -> float:
    other = reference.streaming_attention(*case.arrays, **case.options)
    return _apart(case, other.output, other.lse)


def _exact(case: Case) -> float:
    import mpmath

    output, lse = np.empty_like(case.truth.output), np.empty_like(case.truth.lse)
    with mpmath.workdps(DIGITS):
        for b, h, i in np.ndindex(lse.shape):
            output[b, h, i], lse[b, h, i] = _row(mpmath, case.truth.problem, b, h, i)
    return _apart(case, output, lse)


def _row(mpmath: Any, problem: reference.Problem, b: int, h: int, i: int) -> tuple[Array, float]:
    """Evaluate one row with many digits: a weight for each key, and one for the sink."""
    kv_head, exact = problem.kv_head(h), np.vectorize(mpmath.mpf, otypes=[object])
    keys, value = np.flatnonzero(problem.shown[b, h, i]), exact(problem.value[b, kv_head])
    weights = [mpmath.exp(_score(mpmath, problem, b, h, i, int(j))) for j in keys]
    sink = problem.sinks[h]
    total = mpmath.fsum(weights) + (mpmath.exp(mpmath.mpf(float(sink))) if sink > -np.inf else 0)
    if not keys.size:
        return np.zeros(value.shape[1]), float(sink)
    output = [mpmath.fdot(weights, value[keys, e]) / total for e in range(value.shape[1])]
    return np.array([float(number) for number in output]), float(mpmath.log(total))


def _score(mpmath: Any, problem: reference.Problem, b: int, h: int, i: int, j: int) -> Any:
    """Give the score of a key: product, scale, soft-cap, bias, ALiBi (A2)."""
    query, key = problem.query[b, h, i], problem.key[b, problem.kv_head(h), j]
    score = mpmath.mpf(problem.scale) * mpmath.fdot(zip(map(float, query), map(float, key), strict=True))
    if problem.softcap is not None:
        score = problem.softcap * mpmath.tanh(score / problem.softcap)
    away = abs((int(problem.query_offset[b]) + i) - (int(problem.key_offset[b]) + j))
    return score + float(problem.bias[b, h, i, j]) - mpmath.mpf(float(problem.slopes[b, h])) * away


def _apart(case: Case, output: Array, lse: Array) -> float:
    """Give the largest difference from the dense oracle."""
    truth = case.truth
    if (np.isneginf(lse) != np.isneginf(truth.lse)).any():
        return float("inf")
    magnitude = np.abs(truth.problem.value).max(initial=1.0)
    finite = np.where(np.isneginf(lse), 0, lse), np.where(np.isneginf(lse), 0, truth.lse)
    apart = np.abs(finite[0] - finite[1]) / np.maximum(1, np.abs(finite[1]))
    return float(max(np.abs(output - truth.output).max(initial=0) / magnitude, apart.max(initial=0)))
