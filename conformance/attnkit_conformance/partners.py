"""The partners of laws: for a case, another call that must give the same, or nearly so .

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Array, Case, plain
from attnkit_conformance.pairs import Pair

_TIMES = 3


def with_options(case: Case, arrays: tuple[Array, ...] | None = None, /, **options: Any) -> Case:
    """Give a case with other options, and other arrays too; an option of ``None`` is left out."""
    kept = {name: option for name, option in {**case.options, **options}.items() if option is not None}
    query, key, value = map(plain, arrays or case.arrays)
    sizes = {"queries": query.shape[2], "keys": key.shape[2], "head_dim": query.shape[3]}
    heads = {"batch": query.shape[0], "heads": query.shape[1], "kv_heads": key.shape[1], "value_dim": value.shape[3]}
    other = replace(case, label=f"{case.label}-partner", options=kept, **sizes, **heads)
    return other.holding((query, key, value))


def dyadic(case: Case) -> Case:
    """Give a case with values that are multiples of 1/8 between -2 and 2: sums and products of them are exact."""
    query, key, value = case.arrays
    return case.holding((query, key, np.clip(np.round(8 * plain(value)) / 8, -2, 2)))


# Keys


def keys_permuted(case: Case) -> Pair:
    """Keys and values in another order, with their columns of masks and biases."""
    query, key, value = case.arrays
    order, (mask, bias) = case.rng("order").permutation(case.keys), _scores(case)
    second = with_options(
        case,
        (query, key[:, :, order], value[:, :, order]),
        mask=None if mask is None else ak.Mask.dense(mask[..., order]),
        bias=None if bias is None else bias[..., order],
    )
    return Pair(first=case, second=second)


def keys_repeated(case: Case) -> Pair:
    """Every key three times: only the log-sum-exp rises, by ``log 3``."""
    query, key, value = case.arrays
    second = with_options(case, (query, np.repeat(key, _TIMES, axis=2), np.repeat(value, _TIMES, axis=2)))
    return Pair(first=case, second=second, raised=-np.log(_TIMES))


def keys_weighted(case: Case) -> Pair:
    """Some keys several times, against a bias of the logarithm of how often."""
    query, key, value = case.arrays
    times = 1 + np.arange(case.keys) % _TIMES
    first = with_options(case, (query, np.repeat(key, times, axis=2), np.repeat(value, times, axis=2)))
    return Pair(first=first, second=with_options(case, bias=np.log(times).astype(np.float64)[None]))


def dead_key_by_bias(case: Case) -> Pair:
    """One more key, hidden by a bias of ``-inf``."""
    bias = np.where(np.arange(case.keys + 1) < case.keys, np.float32(0), np.float32(-np.inf))
    return Pair(first=case, second=with_options(case, _one_more(case), bias=bias[None]))


def dead_key_by_mask(case: Case) -> Pair:
    """One more key, hidden by a mask."""
    keep = np.arange(case.keys + 1) < case.keys
    return Pair(first=case, second=with_options(case, _one_more(case), mask=ak.Mask.dense(keep[None])))


def dead_key_by_length(case: Case) -> Pair:
    """One more key, beyond the length."""
    return Pair(first=case, second=with_options(case, _one_more(case), kv_lengths=case.keys))


# Rows, sequences, heads


def queries_permuted(case: Case) -> Pair:
    """Queries in another order, with their rows of masks and biases."""
    query, key, value = case.arrays
    order, (mask, bias) = case.rng("order").permutation(case.queries), _scores(case)
    second = with_options(
        case,
        (query[:, :, order], key, value),
        mask=None if mask is None else ak.Mask.dense(mask[:, :, order]),
        bias=None if bias is None else bias[:, :, order],
    )
    return Pair(first=case, second=second, rows=np.s_[:, :, np.argsort(order)])


def sequences_permuted(case: Case) -> Pair:
    """Sequences in another order, with their lengths."""
    order, lengths = case.rng("order").permutation(case.batch), case.options.get("kv_lengths")
    second = with_options(
        case, tuple(array[order] for array in case.arrays), kv_lengths=None if lengths is None else lengths[order]
    )
    return Pair(first=case, second=second, rows=np.argsort(order))


def heads_permuted(case: Case) -> Pair:
    """Key/value heads in another order, each with its group of query heads, their slopes and sinks."""
    query, key, value = case.arrays
    order, group = case.rng("order").permutation(case.kv_heads), case.heads // case.kv_heads
    heads = (order[:, None] * group + np.arange(group)).reshape(-1)
    moved = {name: case.options[name][heads] for name in ("alibi", "sinks") if name in case.options}
    second = with_options(case, (query[:, heads], key[:, order], value[:, order]), **moved)
    return Pair(first=case, second=second, rows=np.s_[:, np.argsort(heads)])


def heads_repeated(case: Case) -> Pair:
    """Keys and values repeated for every head of their group, one after the other."""
    query, key, value = case.arrays
    group = case.heads // case.kv_heads
    second = with_options(case, (query, np.repeat(key, group, axis=1), np.repeat(value, group, axis=1)))
    return Pair(first=case, second=second)


def causal_prefix(case: Case) -> Pair:
    """The first half of the tokens alone."""
    half = case.queries // 2
    first = with_options(case, tuple(array[:, :, :half] for array in case.arrays))
    return Pair(first=first, second=case, rows=np.s_[:, :, :half])


# Features and values


def scale_moved(case: Case) -> Pair:
    """Queries four times as large, at a quarter of the scale."""
    query, key, value = case.arrays
    scale = case.head_dim**-0.5
    first, second = with_options(case, scale=scale), with_options(case, (4 * query, key, value), scale=scale / 4)
    return Pair(first=first, second=second)


def size_moved(case: Case) -> Pair:
    """Queries four times as large, or keys."""
    query, key, value = case.arrays
    first, second = with_options(case, (4 * query, key, value)), with_options(case, (query, 4 * key, value))
    return Pair(first=first, second=second)


def signs_flipped(case: Case) -> Pair:
    """Queries and keys of the other sign."""
    query, key, value = case.arrays
    return Pair(first=case, second=with_options(case, (-query, -key, value)))


def features_permuted(case: Case) -> Pair:
    """Features in another order and of other signs, in queries and keys alike."""
    query, key, value = case.arrays
    rng = case.rng("order")
    order, signs = rng.permutation(case.head_dim), rng.choice([-1, 1], case.head_dim)
    return Pair(first=case, second=with_options(case, (signs * query[..., order], signs * key[..., order], value)))


def features_padded(case: Case) -> Pair:
    """As many features of zero again, at the same scale, and columns of values."""
    scale, padding = case.head_dim**-0.5, ((0, 0), (0, 0), (0, 0), (0, case.head_dim))
    second = with_options(case, tuple(np.pad(plain(array), padding) for array in case.arrays), scale=scale)
    return Pair(first=with_options(case, scale=scale), second=second, columns=np.s_[: case.width])


def values_scaled(case: Case) -> Pair:
    """Positive values four times as large; no output is small enough to lose digits."""
    query, key, value = case.arrays
    first = with_options(case, (query, key, 1 + np.abs(plain(value))))
    query, key, value = first.arrays
    return Pair(first=with_options(case, (query, key, 4 * plain(value))), second=first, factor=4.0)


def values_moved(case: Case) -> Pair:
    """A constant added to every value."""
    exact = dyadic(case)
    query, key, value = exact.arrays
    return Pair(first=with_options(exact, (query, key, plain(value) + 4)), second=exact, moved=4.0)


def columns_changed(case: Case) -> Pair:
    """Other values in the odd columns."""
    query, key, value = case.arrays
    odd = np.arange(case.width) % 2 == 1
    second = with_options(case, (query, key, np.where(odd, 100 * plain(value)[:, :, ::-1] + 1, plain(value))))
    return Pair(first=case, second=second, columns=np.s_[::2])


# Masks and terms of the scores


def as_booleans(case: Case) -> Pair:
    """What a mask shows, written out."""
    return Pair(first=case, second=with_options(case, mask=ak.Mask.dense(_shown(case))))


def booleans_as_bias(case: Case) -> Pair:
    """A bias of 0 and ``-inf``."""
    bias = np.where(_shown(case), np.float32(0), np.float32(-np.inf))
    return Pair(first=case, second=with_options(case, mask=None, bias=bias))


def wide_window(case: Case) -> Pair:
    """A window as long as the keys, which is causal."""
    return Pair(first=case, second=with_options(case, mask=ak.Mask.window(case.keys)))


def masks_in_one(case: Case) -> Pair:
    """Two masks joined, against the one that they make."""
    rng, shape = case.rng("masks"), (case.batch, 1, case.queries, case.keys)
    one, other = rng.random(shape) < 0.8, rng.random(shape) < 0.8
    first = with_options(case, mask=ak.Mask.dense(one) & ak.Mask.dense(other))
    return Pair(first=first, second=with_options(case, mask=ak.Mask.dense(one & other)))


def bias_raised(case: Case) -> Pair:
    """A constant for each row added to the bias: only the log-sum-exp rises, by as much."""
    bias = plain(case.options["bias"])
    raised = (np.arange(case.queries) - 2.0)[:, None]
    second = with_options(case, bias=(bias + raised).astype(np.float64))
    return Pair(first=case, second=second, raised=-raised[:, 0])


def sink_as_key(case: Case) -> Pair:
    """A sink, against one more key of zeros, with a value of zeros and the sink for its bias."""
    sinks = case.options["sinks"]
    query, key, value = map(plain, case.arrays)
    nothing = ((0, 0), (0, 0), (0, 1), (0, 0))
    bias = np.zeros((1, case.heads, 1, case.keys + 1), np.float32)
    bias[0, :, 0, -1] = sinks
    second = with_options(case, (query, np.pad(key, nothing), np.pad(value, nothing)), sinks=None, bias=bias)
    return Pair(first=case, second=second)


def no_sink(case: Case) -> Pair:
    """Sinks of ``-inf``, against none."""
    return Pair(first=with_options(case, sinks=np.full(case.heads, -np.inf, np.float32)), second=case)


def alibi_as_bias(case: Case) -> Pair:
    """Slopes, against the penalties that they make."""
    slopes, rows = plain(case.options["alibi"]), np.arange(case.queries) + case.keys - case.queries
    distance = np.abs(rows[:, None] - np.arange(case.keys))
    return Pair(first=case, second=with_options(case, alibi=None, bias=-slopes[:, None, None] * distance))


def wide_cap(case: Case) -> Pair:
    """A soft-cap that no score comes near, against none."""
    return Pair(first=with_options(case, softcap=1e10), second=case)


def _one_more(case: Case) -> tuple[Array, ...]:
    """Give query, and keys and values with one more that would outweigh all others."""
    query, key, value = map(plain, case.arrays)
    more = 8 * query[:, : case.kv_heads, -1:]
    return query, np.concatenate([key, more], axis=2), np.concatenate([value, 100 + 0 * value[:, :, :1]], axis=2)


def _shown(case: Case) -> Array:
    """Give what the terms of the mask of a case show, ``[T, S]`` or more, without the oracle."""
    mask: ak.Mask = case.options["mask"]
    return mask.as_array(case.queries, case.keys)


def _scores(case: Case) -> tuple[Array | None, Array | None]:
    """Give the dense mask and the bias of a case, in full."""
    shape = (case.batch, case.heads, case.queries, case.keys)
    mask, bias = case.options.get("mask"), case.options.get("bias")
    kept = None if mask is None else np.broadcast_to(mask.dense_arrays[0], shape)
    return kept, None if bias is None else np.broadcast_to(bias, shape)
