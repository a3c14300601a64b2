"""Conventions: differences that are no accident, told by their name instead of as noise.

A side that computes something else on purpose is exact about it. So each convention is an alternative truth: where the
answer of a side is within the bounds of that one, and not within those of the contract, the convention is what differs.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit.numerics import Numerics
from attnkit.tolerance import Arithmetic
from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.judging import error_of
from attnkit_conformance.subject import Answer

Array = np.ndarray[Any, Any]


class Told(NamedTuple):
    """What a convention makes of a request: output ``[B, H, T, E]`` and LSE ``[B, H, T]``, with their bounds."""

    output: Array
    lse: Array
    output_tau: Array
    lse_tau: Array


class Convention(NamedTuple):
    """Something that others define in another way.

    Attributes
    ----------
    says
        What the side does, and in brackets what the contract says.
    told
        Gives what it makes of a request; ``None`` where it makes no difference to it.
    """

    says: str
    told: Callable[[Case, Arithmetic], Told | None]


def conventions_of(case: Case, answer: Answer, numerics: Arithmetic) -> list[str]:
    """Give the conventions that explain an answer which is not within the bounds of the contract."""
    return list(_explaining(case, answer, numerics))


def _explaining(case: Case, answer: Answer, numerics: Arithmetic) -> Iterator[str]:
    for convention in CONVENTIONS:
        told = convention.told(case, numerics)
        if told is None:
            continue
        error = error_of(answer.output, told.output, told.output_tau)
        if error.size and (error > 1).any():
            continue
        if answer.lse is not None and _differs(answer.lse, told, case.seeing):
            continue
        yield convention.says


def _differs(lse: Array, told: Told, seeing: Array) -> bool:
    """Compare log-sum-exps in rows that see a key; in others they are a convention of their own."""
    return bool((error_of(lse, told.lse, told.lse_tau) > 1)[seeing].any())


def _with(changes: Callable[[Case], Mapping[str, Any] | None]) -> Callable[[Case, Arithmetic], Told | None]:
    """Make what a convention tells of other options."""

    def told(case: Case, numerics: Arithmetic) -> Told | None:
        changed = changes(case)
        if changed is None:
            return None
        truth = reference.attention(*case.arrays, **{**case.options, **changed})
        return _of(truth, numerics)

    return told


def _of(truth: reference.Truth, numerics: Arithmetic) -> Told:
    bound = truth.tolerance(numerics)
    return Told(truth.output, truth.lse, bound.output, bound.lse)


def _top_left(case: Case) -> Mapping[str, Any] | None:
    return None if "query_offset" in case.options else {"query_offset": case.options.get("key_offset", 0)}


def _bottom_right_of_capacity(case: Case) -> Mapping[str, Any] | None:
    if "query_offset" in case.options or not {"kv_lengths", "query_lengths"} & set(case.options):
        return None
    return {"query_offset": np.asarray(case.options.get("key_offset", 0)) + case.keys - case.queries}


def _unscaled(_: Case) -> Mapping[str, Any] | None:
    return {"scale": 1.0}


def _inverted(case: Case) -> Mapping[str, Any] | None:
    mask = case.options.get("mask")
    if mask is None or not mask.dense_arrays:
        return None
    turned = [("dense", ~np.asarray(term[1])) if term[0] == "dense" else term for term in mask.terms]
    return {"mask": ak.Mask(tuple(turned))}


def _wider(by: int) -> Callable[[Case], Mapping[str, Any] | None]:
    """Let windows reach further to the left."""

    def changes(case: Case) -> Mapping[str, Any] | None:
        mask = case.options.get("mask")
        if mask is None or mask.structure.left is None or mask.structure.left + by < 1:
            return None
        left = mask.structure.left
        terms = [("window", left + by, term[2]) if term[0] == "window" else term for term in mask.terms]
        return {"mask": ak.Mask(tuple(terms))}

    return changes


def _sinkless(case: Case) -> Mapping[str, Any] | None:
    return {"sinks": None} if case.options.get("sinks") is not None else None


def _empty_rows(fill: Callable[[Case], Array | float]) -> Callable[[Case, Arithmetic], Told | None]:
    """Put something else in rows that see no key."""

    def told(case: Case, numerics: Arithmetic) -> Told | None:
        empty = ~case.seeing
        if not empty.any() or not isinstance(numerics, Numerics):
            return None
        plain = _of(case.truth, numerics)
        output = np.where(empty[..., None], fill(case), plain.output)
        spread = np.abs(case.arrays[2].astype(np.float64)).max(initial=0.0)
        loose = np.where(empty[..., None], 2 * (numerics.u_o + case.keys * numerics.u_a) * spread, plain.output_tau)
        return Told(output, plain.lse, loose, plain.lse_tau)

    return told


def _mean(case: Case) -> Array:
    """Give the mean of all values, which is what a large negative number in place of minus infinity makes."""
    value = case.arrays[2].astype(np.float64)
    mean = value.mean(axis=2, keepdims=True) if case.keys else np.zeros((*value.shape[:2], 1, value.shape[3]))
    return np.asarray(np.repeat(mean, case.heads // case.kv_heads, axis=1))


def _lse_times(factor: float) -> Callable[[Case, Arithmetic], Told | None]:
    def told(case: Case, numerics: Arithmetic) -> Told | None:
        plain = _of(case.truth, numerics)
        return plain._replace(lse=plain.lse * factor, lse_tau=plain.lse_tau * factor)

    return told


def _capped_last(case: Case, numerics: Arithmetic) -> Told | None:
    """Cap the scores after the bias was added, which only a value of 0 or minus infinity leaves as it was."""
    cap, bias = case.options.get("softcap"), case.options.get("bias")
    if cap is None or bias is None:
        return None
    scores = _scores(case) + np.broadcast_to(np.asarray(bias, np.float64), case.shown.shape)
    capped = np.where(case.shown, cap * np.tanh(scores / cap), -np.inf)
    options = {name: option for name, option in case.options.items() if name not in ("softcap", "bias")}
    # the same scores, as a bias on products that are 0
    query = np.zeros_like(case.arrays[0], np.float64)
    return _of(reference.attention(query, *case.arrays[1:], **{**options, "bias": capped}), numerics)


def _scores(case: Case) -> Array:
    query, key = (np.asarray(array, np.float64) for array in case.arrays[:2])
    key = np.repeat(key, case.heads // case.kv_heads, axis=1)
    scale = case.options.get("scale")
    products: Array = np.einsum("bhtd,bhsd->bhts", query, key)
    return products * (1 / math.sqrt(case.head_dim) if scale is None else scale)


CONVENTIONS: Final = (
    Convention("the first query stands on the first key (the last valid one on the last valid key)", _with(_top_left)),
    Convention(
        "queries are aligned with the end of the key axis (with the last valid key)", _with(_bottom_right_of_capacity)
    ),
    Convention("a row that sees no key gives NaN (zeros)", _empty_rows(lambda _: np.nan)),
    Convention("a row that sees no key gives the mean of all values (zeros)", _empty_rows(_mean)),
    Convention("the log-sum-exp is in base 2 (natural)", _lse_times(1 / math.log(2))),
    Convention("True in a dense mask hides (keeps)", _with(_inverted)),
    Convention("a window counts keys before the query (the query's own too)", _with(_wider(1))),
    Convention("a window of w reaches w - 2 keys back (w - 1)", _with(_wider(-1))),
    Convention("sinks are left out (take part in the normaliser)", _with(_sinkless)),
    Convention("scores are soft-capped after the bias is added (before)", _capped_last),
    Convention("scores are not scaled (by 1 / sqrt(D))", _with(_unscaled)),
)
"""What others are known to define in another way."""
