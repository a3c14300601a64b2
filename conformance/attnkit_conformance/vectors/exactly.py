"""The expected values and their bounds, by arithmetic of many digits, rounded once.

Nothing here depends on a maths library or on a machine, so that a package comes out bit for bit the same wherever it
is exported: mpmath computes with integers, and its results are rounded to float64 once. The bound is that of
``attnkit.tolerance``, whose formulas are given these numbers as Python objects: NumPy then adds and multiplies them one
after the other, in IEEE arithmetic, and no BLAS chooses an order of its own. Then it is rounded up.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``E`` value head size, ``n`` keys shown to one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from attnkit.reference import Problem
from attnkit.tolerance import Arithmetic, FloatArray, RowFacts, lse_budget, output_budget
from attnkit_conformance.cases import Case

_BITS: Final = 192
_BOUND_BITS: Final = 24
Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Row(RowFacts):
    """The facts of a row, and the sum of its exponentials, which no maths library is asked for."""

    total: float

    @property
    def normaliser(self) -> float:
        """The sum of the exponentials after the largest score was subtracted."""
        return self.total


class ExactTruth:
    """What a call gives, row by row, in numbers of many digits.

    Parameters
    ----------
    case
        The call. The truth about it depends on its numbers, not on the element type that holds them.
    """

    def __init__(self, case: Case) -> None:
        self._tiles = case.truth.usual_tiles
        self._problem = case.truth.problem
        self.output = np.zeros(case.output_shape)
        self.lse = np.full(case.output_shape[:3], -np.inf)
        self._rows = dict(self._solved())

    def expected(self, numerics: Arithmetic, *, lse: bool) -> dict[str, FloatArray]:
        """Give the truth, and under ``NAME_tau`` how far implementations of these numerics may be from it."""
        found = {"output": self.output, "output_tau": np.zeros_like(self.output)}
        if lse:
            found |= {"lse": self.lse, "lse_tau": np.zeros_like(self.lse)}
        for place, row in self._rows.items():
            found["output_tau"][place] = [_up(bound) for bound in output_budget(row, numerics)]
            if lse:
                found["lse_tau"][place] = _up(lse_budget(row, numerics))
        return found

    def _solved(self) -> Iterator[tuple[Place, RowFacts]]:
        problem = self._problem
        query, key, value = (_many(array) for array in (problem.query, problem.key, problem.value))
        sizes = abs(key)
        for b, h, i in np.ndindex(self.lse.shape):
            keys, head = np.flatnonzero(problem.shown[b, h, i]), problem.kv_head(h)
            seen = [(key[b, head, j], sizes[b, head, j]) for j in keys]
            row = self._row((b, h, i), query[b, h, i], seen, value[b, head, keys])
            self.output[b, h, i], self.lse[b, h, i] = row.output, row.lse
            yield (b, h, i), row

    def _row(self, place: Place, query: Any, keys: Sequence[tuple[Any, Any]], values: Any) -> RowFacts:
        context, problem, h = _context(), self._problem, place[1]
        scale, sink = context.mpf(problem.scale), float(problem.sinks[h])
        operands = problem.key[place[0], problem.kv_head(h), np.flatnonzero(problem.shown[place])]
        products = [_capped(problem, scale * context.fdot(query, key)) for key, _ in keys]
        magnitude = abs(query)
        sizes = [abs(scale) * context.fdot(magnitude, size) for _, size in keys]
        added = self._added(place)
        scores = [product + sum(terms) for product, terms in zip(products, added, strict=True)]
        magnitudes = [sum(map(abs, terms)) for terms in added]
        if sink != -math.inf:
            zeros = np.array([[context.mpf(0)] * problem.value.shape[3]], dtype=object)
            values = np.concatenate([values, zeros])
            operands = np.concatenate([operands, np.zeros((1, operands.shape[1]))])
            scores, sizes, magnitudes = [*scores, context.mpf(sink)], [*sizes, context.mpf(0)], [*magnitudes, abs(sink)]
            products = [*products, context.mpf(0)]
        if not scores:
            return _empty(problem)
        top = max(scores)
        exponentials = [context.exp(score - top) for score in scores]
        total = context.fsum(exponentials)
        weights = [exponential / total for exponential in exponentials]
        return _Row(
            weight=_floats(weights),
            score=_floats(scores),
            size=_floats(sizes),
            added=_floats(magnitudes),
            capped=_floats([abs(product) if problem.softcap is not None else 0 for product in products]),
            value=_floats(values.reshape(-1)).reshape(values.shape),
            output=_floats([context.fdot(weights, values[:, e]) for e in range(values.shape[1])]),
            lse=float(top + context.log(total)),
            query=problem.query[place],
            key=operands,
            scale=problem.scale,
            tiles=self._tiles,
            total=float(total),
        )

    def _added(self, place: Place) -> list[tuple[Any, Any]]:
        """Give what is added to each product: the bias, and the penalty of ALiBi."""
        context, problem, (b, h, i) = _context(), self._problem, place
        keys = np.flatnonzero(problem.shown[b, h, i])
        slope = context.mpf(float(problem.slopes[b, h]))
        distances = problem.distance(b, i, keys)
        return [
            (context.mpf(float(problem.bias[b, h, i, j])), -slope * int(distance))
            for j, distance in zip(keys, distances, strict=True)
        ]


@cache
def _context() -> Any:
    """Give arithmetic of our own, lest anyone else's precision change it.

    Raises
    ------
    ImportError
        If mpmath is not installed.
    """
    try:
        from mpmath.ctx_mp import MPContext
    except ImportError as error:
        raise ImportError("golden vectors need mpmath; pip install 'attnkit[conformance]'") from error
    context = MPContext()
    context.prec = _BITS
    return context


def _capped(problem: Problem, product: Any) -> Any:
    if problem.softcap is None:
        return product
    cap = _context().mpf(problem.softcap)
    return cap * _context().tanh(product / cap)


def _empty(problem: Problem) -> RowFacts:
    none, width, size = np.zeros(0), problem.value.shape[3], problem.query.shape[3]
    return RowFacts(
        *(none,) * 5,
        value=np.zeros((0, width)),
        output=np.zeros(width),
        lse=-math.inf,
        query=np.zeros(size),
        key=np.zeros((0, size)),
        scale=problem.scale,
        tiles=1,
    )


def _many(array: FloatArray) -> Any:
    """Give an array of numbers of many digits, each exactly what it was."""
    return _objects([_context().mpf(number) for number in array.reshape(-1).tolist()]).reshape(array.shape)


def _objects(numbers: Sequence[Any]) -> Any:
    array = np.empty(len(numbers), dtype=object)
    array[:] = numbers
    return array


def _floats(numbers: Iterable[Any]) -> Any:
    """Round each once, and keep them as Python objects."""
    return _objects([float(number) for number in numbers])


def _up(bound: Any) -> float:
    """Round up: by more than all roundings of the formula together, to 24 bits, which is enough for a bound."""
    fraction, exponent = math.frexp(float(bound) * (1 + 2**-40))
    return math.ldexp(math.ceil(math.ldexp(fraction, _BOUND_BITS)), exponent - _BOUND_BITS)
