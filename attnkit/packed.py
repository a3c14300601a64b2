"""Attention over sequences packed end to end, without padding between them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from attnkit.arrays import library_of, namespace
from attnkit.backend import AttentionOutput
from attnkit.call import Described, Options, describe_call
from attnkit.checks import check_array, common_device, host_array, integers
from attnkit.errors import DTypeError, ShapeError, UnsupportedError
from attnkit.selection import Choice, select
from attnkit.tracing import observer, record

Array = Any


def run_packed(
    query: Array,
    key: Array,
    value: Array,
    cu_q: Array,
    cu_k: Array,
    limits: tuple[int | None, int | None],
    run: Callable[[Array, Array, Array], AttentionOutput],
    together: Callable[[Array, Array, Array, list[int], list[int]], AttentionOutput | None],
) -> AttentionOutput:
    """Let the backend take all sequences ``together``, or call ``run`` with each and lay the results end to end.

    Parameters
    ----------
    query, key, value
        ``[N, H, D]``, ``[M, K, D]``, ``[M, K, E]``.
    cu_q, cu_k
        Cumulative lengths ``[B + 1]``, from 0 to ``N`` and ``M``.
    limits
        The longest query and key length that the caller promises, or ``None``.
    run
        Attention of one sequence, given as ``[1, H, T_b, D]`` views.
    together
        Attention of all sequences, of which the last two arguments give the starts; ``None`` where the backend takes
        them one by one.

    Raises
    ------
    ShapeError, DTypeError
        If an argument does not fit; nothing was computed.
    """
    for name, array in (("query", query), ("key", key), ("value", value)):
        check_array(name, array)
    common_device(query, key, value)
    if not len(query.shape) == len(key.shape) == len(value.shape) == 3 or key.shape[0] != value.shape[0]:
        shapes = ", ".join(str(list(array.shape)) for array in (query, key, value))
        raise ShapeError(f"query, key, value must be [N, H, D], [M, K, D], [M, K, E], got {shapes}")
    starts_q = _starts("cu_q", cu_q, query.shape[0], "N", "max_q", limits[0])
    starts_k = _starts("cu_k", cu_k, key.shape[0], "M", "max_k", limits[1])
    if len(starts_q) != len(starts_k):
        raise ShapeError(f"cu_q and cu_k must both be [B + 1], got lengths {len(starts_q)} and {len(starts_k)}")
    whole = together(query, key, value, starts_q, starts_k)
    if whole is not None:
        return whole
    xp = namespace(query, key, value)
    parts = [run(*_sequence(xp, (query, key, value), starts_q, starts_k, b)) for b in range(len(starts_q) - 1)]
    if not parts:
        parts = [run(*(xp.permute_dims(array, (1, 0, 2))[None] for array in (query, key, value)))]
    output = xp.concat([xp.permute_dims(part.output[0], (1, 0, 2)) for part in parts], axis=0)
    lses = [part.lse[0] for part in parts if part.lse is not None]
    lse = xp.concat(lses, axis=1) if lses else None
    return AttentionOutput(output, lse)


def run_together(
    query: Array, key: Array, value: Array, starts_q: list[int], starts_k: list[int], options: Options, choice: Choice
) -> AttentionOutput | None:
    """Put all sequences to the backend at once: as a batch of padded ones, of which it gets the packed arrays.

    ``None`` where it takes them one by one, or does not take such a batch; and where calls are observed, since what is
    observed is a call with arrays of its own.
    """
    lengths_q, lengths_k = np.diff(starts_q), np.diff(starts_k)
    batch = len(lengths_q)
    if batch < 2 or not query.shape[0] or not query.dtype == key.dtype == value.dtype or observer() is not None:
        return None
    (heads, head_dim), (kv_heads, key_dim) = query.shape[1:], key.shape[1:]
    xp, most_q, most_k = namespace(query), int(lengths_q.max()), int(lengths_k.max())
    like = xp.broadcast_to(xp.permute_dims(query[:1], (1, 0, 2))[None], (batch, heads, most_q, head_dim))
    stored = [Described((batch, kv_heads, most_k, size), key.dtype) for size in (key_dim, value.shape[2])]
    options = options._replace(query_lengths=lengths_q, kv_lengths=lengths_k)
    try:
        request, operands = describe_call(like, stored[0], stored[1], options, False, cached=True)
        selection = select(request, choice)
    except UnsupportedError:
        return None
    backend = selection.backend
    if library_of(query) not in backend.capabilities().libraries:
        return None
    result = backend.attend_packed(query, key, value, (starts_q, starts_k), operands, selection.plan)
    if result is not None:
        record(request, selection, choice)
    return result


def _sequence(
    xp: Any, arrays: tuple[Array, Array, Array], starts_q: list[int], starts_k: list[int], b: int
) -> list[Array]:
    cuts = [slice(starts[b], starts[b + 1]) for starts in (starts_q, starts_k, starts_k)]
    return [xp.permute_dims(array[cut], (1, 0, 2))[None] for array, cut in zip(arrays, cuts, strict=True)]


def _starts(name: str, cumulative: Any, total: int, axis: str, limit_name: str, limit: int | None) -> list[int]:
    array = host_array(name, cumulative)
    if array.ndim != 1 or not array.size:
        raise ShapeError(f"{name} must be [B + 1] cumulative lengths, got shape {list(array.shape)}")
    starts: list[int] = integers(name, array, array.size).tolist()
    if starts[0] != 0 or starts[-1] != total or any(b < a for a, b in pairwise(starts)):
        raise ShapeError(f"{name} must rise from 0 to {axis} = {total} without falling, got {starts}")
    longest = max((b - a for a, b in pairwise(starts)), default=0)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | np.integer)):
        raise DTypeError(f"{limit_name} must be an integer or None, got {type(limit).__name__}")
    if limit is not None and longest > limit:
        raise ShapeError(f"{limit_name} must be >= the longest sequence in {name} ({longest}), got {limit}")
    return starts
