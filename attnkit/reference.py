"""The float64 oracle: what attention means, rule by rule of the contract (A1-A12), written to be read.

It is not a backend and shares no code with one. ``attention`` is the definition; ``streaming_attention`` says the same
once more, one key at a time in plain Python, so that each checks the other. Only shown keys are ever picked out of the
arrays, so that whatever lies at hidden or dead ones cannot reach a result (A8). Arguments are taken to be valid.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``n`` keys shown to one row. Indices: ``b`` sequence, ``h`` query head, ``i`` row, ``j``
key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attnkit.errors import DTypeError, ShapeError
from attnkit.tolerance import Arithmetic, FloatArray, RowFacts, Tolerance, lse_budget, output_budget

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Index = int | IntArray
Integers = int | npt.ArrayLike | None
Term = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """One call, copied in float64, every default filled in and a neutral value in place of what was left out.

    ``bias`` is ``[B, H, T, S]``, ``slopes`` ``[B, H]``, ``sinks`` ``[H]`` with ``-inf`` for none; lengths and offsets
    are ``[B]``. Arrays in ``terms`` have their full rank. ``bias_shape`` is the shape in which the bias was given.
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    terms: tuple[Term, ...]
    scale: float
    softcap: float | None
    bias: FloatArray
    bias_shape: tuple[int, ...]
    slopes: FloatArray
    sinks: FloatArray
    query_lengths: IntArray
    kv_lengths: IntArray
    query_offset: IntArray
    key_offset: IntArray

    @cached_property
    def shown(self) -> BoolArray:
        """Tell what is visible and not hidden by a bias of ``-inf`` (A6), ``[B, H, T, S]``."""
        indices = np.ix_(*(np.arange(n) for n in self.bias.shape))
        return np.asarray(visible(self, *indices) & (self.bias != -np.inf))

    def kv_head(self, h: int) -> int:
        """Give the key/value head that query head ``h`` reads (A9)."""
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        return int(h // (heads // kv_heads))

    def products(self, b: int, h: int, i: int, keys: IntArray) -> FloatArray:
        """Take the dot products, scale them, then cap them (A1, A2), ``[n]``."""
        scores: FloatArray = self.scale * (self.key[b, self.kv_head(h), keys] @ self.query[b, h, i])
        return scores if self.softcap is None else self.softcap * np.tanh(scores / self.softcap)

    def added(self, b: int, h: int, i: int, keys: IntArray) -> FloatArray:
        """Give what is added to the products: the bias, and the penalty of ALiBi (A2), ``[2, n]``."""
        return np.stack([self.bias[b, h, i, keys], -self.slopes[b, h] * self.distance(b, i, keys)])

    def distance(self, b: int, i: int, keys: IntArray) -> IntArray:
        """Give how far keys are from a row, in positions, ``[n]``."""
        return np.asarray(np.abs(self.query_offset[b] + i - (self.key_offset[b] + keys)))


@dataclass(frozen=True, eq=False)
class Truth:
    """What attention gives, in float64.

    Parameters
    ----------
    output
        ``[B, H, T, E]``; 0 for an empty row (A7).
    lse
        ``[B, H, T]``, natural log of the normaliser, sink included; ``-inf`` for an empty row without a sink.
    weights
        ``[B, H, T, S]``, softmax weights; 0 at hidden keys. A sink takes its share of the sum.
    problem
        What this is the answer to.
    """

    output: FloatArray
    lse: FloatArray
    weights: FloatArray
    problem: Problem = field(repr=False)

    def tolerance(self, numerics: Arithmetic, *, tiles: int | None = None) -> Tolerance:
        """Bound how far a correct implementation may be from this, element by element.

        ``tiles`` is into how many parts the implementation cuts the keys, splits included. By default it is
        ``ceil(S / 64)``, 64 being the smallest tile in common use.
        """
        tiles = tiles or self.usual_tiles
        bound = Tolerance(np.empty_like(self.output), np.empty_like(self.lse))
        for b, h, i in np.ndindex(self.lse.shape):
            facts = self.facts(b, h, i, tiles)
            bound.output[b, h, i] = output_budget(facts, numerics)
            bound.lse[b, h, i] = lse_budget(facts, numerics)
        return bound

    @property
    def usual_tiles(self) -> int:
        """Into how many parts the keys are cut at most: 64 is the smallest tile in common use."""
        return max(1, math.ceil(int(self.weights.shape[-1]) / 64))

    def facts(self, b: int, h: int, i: int, tiles: int) -> RowFacts:
        """Give what the budget of one row is computed from; a sink that takes part is the last key of it."""
        problem = self.problem
        keys, head = np.flatnonzero(problem.shown[b, h, i]), problem.kv_head(h)
        products, added = problem.products(b, h, i, keys), problem.added(b, h, i, keys)
        sizes = abs(problem.scale) * (np.abs(problem.key[b, head, keys]) @ np.abs(problem.query[b, h, i]))
        facts = RowFacts(
            weight=self.weights[b, h, i, keys],
            score=products + added.sum(axis=0),
            size=sizes,
            added=np.abs(added).sum(axis=0),
            capped=np.zeros_like(products) if problem.softcap is None else np.abs(products),
            value=problem.value[b, head, keys],
            output=self.output[b, h, i],
            lse=float(self.lse[b, h, i]),
            query=problem.query[b, h, i],
            key=problem.key[b, head, keys],
            scale=problem.scale,
            tiles=tiles,
        )
        return facts if problem.sinks[h] == -np.inf else facts.with_sink(float(problem.sinks[h]))


def visible(problem: Problem, b: Index, h: Index, i: Index, j: Index) -> bool | BoolArray:
    """Say whether row ``i`` of head ``h`` in sequence ``b`` may see key ``j`` (A3-A5).

    This is the definition, a predicate on four integers. Its operators mean the same on integer arrays that broadcast.
    """
    seen = (i < problem.query_lengths[b]) & (j < problem.kv_lengths[b])
    for term in problem.terms:
        seen = seen & _keeps(term, problem, b, h, i, j)
    return seen


def _keeps(term: Term, problem: Problem, b: Index, h: Index, i: Index, j: Index) -> Any:
    query_position = problem.query_offset[b] + i
    key_position = problem.key_offset[b] + j
    match term:
        case ("causal",):
            return key_position <= query_position
        case ("window", left, right):
            not_too_old = left is None or query_position - left < key_position
            not_too_new = right is None or key_position <= query_position + right
            return not_too_old & not_too_new
        case ("prefix", n):
            return (key_position < n) | (key_position <= query_position)
        case ("chunked", n):
            return key_position // n == query_position // n
        case ("documents", ids_q, ids_k):
            return ids_q[b, i] == ids_k[b, j]
        case ("dense", keep):
            return keep[b, h, i, j]
    raise ValueError(f"mask has an unknown term {term!r}")


RowSolver = Callable[[Problem, int, int, int], tuple[FloatArray, float, FloatArray]]


def _softmax_row(problem: Problem, b: int, h: int, i: int) -> tuple[FloatArray, float, FloatArray]:
    """Take the softmax of a whole row at once: output ``[E]``, LSE, weights ``[S]``."""
    keys, sink = np.flatnonzero(problem.shown[b, h, i]), float(problem.sinks[h])
    values = problem.value[b, problem.kv_head(h), keys]
    weights = np.zeros(problem.key.shape[2])
    scores = problem.products(b, h, i, keys) + problem.added(b, h, i, keys).sum(axis=0)
    top = max(scores.max(initial=-np.inf), sink)
    if top == -np.inf:
        return np.zeros(values.shape[1]), top, weights
    normaliser = np.exp(scores - top).sum() + np.exp(sink - top)
    weights[keys] = np.exp(scores - top) / normaliser
    output = (np.ascontiguousarray(values.T) * weights[keys]).sum(axis=-1)  # pairwise: a long product is not
    return output, float(top + np.log(normaliser)), weights


def _streaming_row(problem: Problem, b: int, h: int, i: int) -> tuple[FloatArray, float, FloatArray]:
    """Fold one key after the other into a running maximum, normaliser and output: the online softmax."""
    head = problem.kv_head(h)
    top, scores = float(problem.sinks[h]), np.full(problem.key.shape[2], -np.inf)
    normaliser, output = float(top > -np.inf), np.zeros(problem.value.shape[3])
    for j in range(scores.size):
        if not visible(problem, b, h, i, j) or problem.bias[b, h, i, j] == -np.inf:
            continue
        score = problem.scale * math.fsum(problem.query[b, h, i] * problem.key[b, head, j])
        if problem.softcap is not None:
            score = problem.softcap * math.tanh(score / problem.softcap)
        distance = abs(problem.query_offset[b] + i - problem.key_offset[b] - j)
        score += problem.bias[b, h, i, j] - problem.slopes[b, h] * distance
        new_top = max(top, score)
        shrink, weight = math.exp(top - new_top), math.exp(score - new_top)
        normaliser = normaliser * shrink + weight
        output = output * shrink + weight * problem.value[b, head, j]
        top, scores[j] = new_top, score
    if normaliser == 0:
        return output, -math.inf, np.zeros_like(scores)
    lse = top + math.log(normaliser)
    return output / normaliser, lse, np.exp(scores - lse)


def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    mask: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: npt.ArrayLike | None = None,
    alibi: npt.ArrayLike | None = None,
    sinks: npt.ArrayLike | None = None,
    query_lengths: Integers = None,
    kv_lengths: Integers = None,
    query_offset: Integers = None,
    key_offset: Integers = None,
    solve_row: RowSolver = _softmax_row,
) -> Truth:
    """Compute attention as the contract defines it.

    ``query`` is ``[B, H, T, D]``, ``key`` ``[B, K, S, D]``, ``value`` ``[B, K, S, E]``, of any real element type.
    ``bias`` broadcasts to ``[B, H, T, S]``; ``alibi`` holds slopes ``[H]`` or ``[B, H]``; ``sinks`` is ``[H]``; lengths
    and offsets are one integer or ``[B]``.

    ``mask`` is None, a sequence of terms, or an object whose ``terms`` are such a sequence. A term is ``("causal",)``,
    ``("window", left, right)``, ``("prefix", n)``, ``("chunked", n)``, ``("documents", ids_q, ids_k)`` with ids ``[T]``
    or ``[B, T]`` and ``[S]`` or ``[B, S]``, or ``("dense", keep)`` with booleans that broadcast to ``[B, H, T, S]``.

    Raises
    ------
    ShapeError
        If the arrays are not 4-D or the query heads are not a multiple of the key/value heads.
    DTypeError
        If a dense mask is not boolean.
    """
    query, key, value = (np.array(array, np.float64) for array in (query, key, value))
    if not query.ndim == key.ndim == value.ndim == 4 or query.shape[1] % (key.shape[1] or query.shape[1] + 1):
        shapes = f"{query.shape}, {key.shape}, {value.shape}"
        raise ShapeError(f"query, key, value must be 4-D with H % K == 0, got {shapes}")
    (batch, heads, rows, head_dim), keys = query.shape, key.shape[2]
    shape = (batch, heads, rows, keys)
    query_lengths, kv_lengths = _integers(query_lengths, rows, batch), _integers(kv_lengths, keys, batch)
    key_offset = _integers(key_offset, 0, batch)
    problem = Problem(
        query=query,
        key=key,
        value=value,
        terms=tuple(_full_rank(term, shape) for term in getattr(mask, "terms", mask) or ()),
        scale=1 / math.sqrt(head_dim) if scale is None else float(scale),
        softcap=None if softcap is None else float(softcap),
        bias=_floats(bias, 0.0, shape),
        bias_shape=np.shape(bias) if bias is not None else (),
        slopes=_floats(alibi, 0.0, (batch, heads)),
        sinks=_floats(sinks, -np.inf, (heads,)),
        query_lengths=query_lengths,
        kv_lengths=kv_lengths,
        query_offset=_integers(query_offset, key_offset + kv_lengths - query_lengths, batch),
        key_offset=key_offset,
    )
    truth = Truth(np.empty((*shape[:3], value.shape[3])), np.empty(shape[:3]), np.empty(shape), problem)
    for b, h, i in np.ndindex(shape[:3]):
        truth.output[b, h, i], truth.lse[b, h, i], truth.weights[b, h, i] = solve_row(problem, b, h, i)
    return truth


streaming_attention = partial(attention, solve_row=_streaming_row)
"""The second form: the same arguments and the same answer as ``attention``, by the online softmax."""


def _integers(value: Integers, default: Integers, batch: int) -> IntArray:
    return np.broadcast_to(np.array(default if value is None else value, np.int64), (batch,))


def _floats(value: npt.ArrayLike | None, default: float, shape: tuple[int, ...]) -> FloatArray:
    return np.broadcast_to(np.array(default if value is None else value, np.float64), shape)


def _full_rank(term: Term, shape: tuple[int, int, int, int]) -> Term:
    batch, _, rows, keys = shape
    match term:
        case ("documents", ids_q, ids_k):
            ids_q, ids_k = np.array(ids_q), np.array(ids_k)
            return ("documents", np.broadcast_to(ids_q, (batch, rows)), np.broadcast_to(ids_k, (batch, keys)))
        case ("dense", keep):
            if np.asarray(keep).dtype != np.bool_:
                raise DTypeError(f"a dense mask must be boolean, got {np.asarray(keep).dtype}")
            return ("dense", np.broadcast_to(np.array(keep), shape))
    return term
