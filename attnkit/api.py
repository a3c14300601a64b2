"""The functions people call.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnkit.backend import AttentionOutput, Backend
from attnkit.cache.base import KVCache
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.loading import load
from attnkit.cache.making import new_cache
from attnkit.cache.pool import PagePool
from attnkit.call import Options, describe_call, gather_options
from attnkit.checks import check_array
from attnkit.errors import ShapeError
from attnkit.explanation import Explanation, explain_request
from attnkit.interception import interceptor
from attnkit.masks import Mask
from attnkit.packed import run_packed, run_together
from attnkit.registry import BackendInfo, registry
from attnkit.selection import current_choice, first_taken, select
from attnkit.tracing import Answered, observer, record

Array = Any
BackendChoice = str | Backend | Sequence[str | Backend] | None


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    alibi: Array | None = None,
    sinks: Array | None = None,
    query_lengths: Array | int | None = None,
    kv_lengths: Array | int | None = None,
    query_offset: Array | int | None = None,
    key_offset: Array | int | None = None,
    backend: BackendChoice = None,
) -> Array:
    """Compute ``softmax(scale * Q K^T) V`` per head, with masks.

    The order is: scale, soft-cap ``c * tanh(s / c)``, bias and ALiBi, mask, sink, softmax.

    Parameters
    ----------
    query
        ``[B, H, T, D]``; ``[H, T, D]`` and ``[T, D]`` work too, and key and value then have the same rank.
    key
        ``[B, K, S, D]``; query head ``h`` uses key/value head ``h // (H // K)``.
    value
        ``[B, K, S, E]``.
    mask
        Which keys a query sees; ``None`` = every valid key.
    scale
        Any finite number; default ``1 / sqrt(D)``.
    softcap
        Cap on the scores, > 0.
    bias
        Floats added to the scores, broadcastable to ``[B, H, T, S]``; ``-inf`` hides a key.
    alibi
        Slopes ``[H]`` or ``[B, H]``: ``-slope * |p - j|`` is added to the scores.
    sinks
        Logits ``[H]`` that take part in the normaliser without a value.
    query_lengths, kv_lengths
        Valid queries and keys of each sequence, ``[B]`` integers or one; the rest is padding.
    query_offset, key_offset
        Positions of query 0 and key 0, ``[B]`` integers or one. By default key 0 stands at 0 and the last valid query
        stands on the last valid key.
    backend
        ``"numpy"``, ``"numpy:tiled"``, a ``Backend``, or a list of them in order of preference; default: context,
        environment, automatic.

    Returns
    -------
    ``[B, H, T, E]`` (or the rank of the query) in the query's dtype. A query that sees no key gives zeros.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        If an argument does not fit.
    UnsupportedError
        If no backend that may be taken takes the call; ``.reasons`` says why for each.
    BackendNotFoundError, BackendUnavailableError
        If the chosen backend does not exist, or cannot run here.
    """
    options = gather_options(
        mask, scale, softcap, bias, alibi, sinks, query_lengths, kv_lengths, query_offset, key_offset
    )
    return _run(query, key, value, options, False, backend).output


def attention_with_lse(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    alibi: Array | None = None,
    sinks: Array | None = None,
    query_lengths: Array | int | None = None,
    kv_lengths: Array | int | None = None,
    query_offset: Array | int | None = None,
    key_offset: Array | int | None = None,
    backend: BackendChoice = None,
) -> AttentionOutput:
    """Compute attention and the natural logarithm of its normaliser (sink included).

    Takes the arguments of ``attention``.

    Returns
    -------
    output, lse
        ``[B, H, T, E]`` and ``[B, H, T]``, the latter float32 or wider; ``(0, -inf)`` for a query that sees no key.
    """
    options = gather_options(
        mask, scale, softcap, bias, alibi, sinks, query_lengths, kv_lengths, query_offset, key_offset
    )
    return _run(query, key, value, options, True, backend)


def explain(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    alibi: Array | None = None,
    sinks: Array | None = None,
    query_lengths: Array | int | None = None,
    kv_lengths: Array | int | None = None,
    query_offset: Array | int | None = None,
    key_offset: Array | int | None = None,
    lse: bool = False,
    backend: BackendChoice = None,
) -> Explanation:
    """Say which backend and path would take a call, and give every reason against every other one; runs nothing.

    Takes the arguments of ``attention``; ``lse=True`` asks about ``attention_with_lse``.
    """
    options = gather_options(
        mask, scale, softcap, bias, alibi, sinks, query_lengths, kv_lengths, query_offset, key_offset
    )
    request, _ = describe_call(*_to_4d(query, key, value), options, lse)
    return explain_request(request, current_choice(backend))


def attention_packed(
    query: Array,
    key: Array,
    value: Array,
    cu_q: Array,
    cu_k: Array,
    *,
    max_q: int | None = None,
    max_k: int | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi: Array | None = None,
    sinks: Array | None = None,
    backend: BackendChoice = None,
) -> Array:
    """Compute attention over sequences of different lengths laid end to end; none sees another.

    Parameters
    ----------
    query, key, value
        ``[N, H, D]``, ``[M, K, D]``, ``[M, K, E]``: all tokens of all sequences.
    cu_q, cu_k
        Cumulative lengths ``[B + 1]`` from 0 to ``N`` and ``M``: sequence ``b`` is ``cu_q[b]:cu_q[b + 1]``.
    max_q, max_k
        The longest lengths, for backends that must know them; checked where given.
    mask
        Positions count inside each sequence; documents and dense masks do not fit here.
    scale, softcap, alibi, sinks, backend
        As in ``attention``; slopes are ``[H]``.

    Returns
    -------
    ``[N, H, E]`` in the query's dtype.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, UnsupportedError, BackendNotFoundError, BackendUnavailableError
        As in ``attention``.
    """
    if isinstance(mask, Mask) and (mask.document_ids or mask.dense_arrays):
        raise ShapeError(f"mask of packed sequences must be positional (causal, window, prefix, chunked), got {mask!r}")
    options = gather_options(mask, scale, softcap, None, alibi, sinks)

    def run(query: Array, key: Array, value: Array) -> AttentionOutput:
        return _run(query, key, value, options, False, backend)

    def together(
        query: Array, key: Array, value: Array, starts_q: list[int], starts_k: list[int]
    ) -> AttentionOutput | None:
        if type(query) is not np.ndarray and interceptor(type(query)) is not None:
            return None  # it may be a stand-in, which cannot be looked at
        return run_together(query, key, value, starts_q, starts_k, options, current_choice(backend))

    return run_packed(query, key, value, cu_q, cu_k, (max_q, max_k), run, together).output


def make_cache(config: KVCacheConfig, *, backend: BackendChoice = None, pool: PagePool | None = None) -> KVCache:
    """Make an empty KV cache whose bytes live in a backend.

    Parameters
    ----------
    config
        Sizes, layout, dtype and codecs.
    backend
        A backend, its name, or a list of them in order of preference; default: context, environment, ``"numpy"``.
    pool
        Where a paged cache takes its pages from, on the pool's backend; default: a pool of its own.

    Raises
    ------
    BackendNotFoundError, BackendUnavailableError
        If the backend does not exist, or cannot run here.
    UnsupportedError
        If it cannot store or attend over such a cache.
    """
    choice = current_choice(backend) if pool is None or backend is not None else pool.backend
    if not isinstance(choice, tuple):
        return new_cache(config, "numpy" if choice is None else choice, pool)
    complaint = "none of the chosen backends can store this cache:"
    return first_taken(choice, lambda item: new_cache(config, item, pool), complaint)


def load_cache(
    path: str | os.PathLike[str],
    *,
    backend: BackendChoice = None,
    config: KVCacheConfig | None = None,
    pool: PagePool | None = None,
) -> KVCache:
    """Make the KV cache that ``KVCache.save`` wrote to a file, bit for bit, on any backend.

    All of the file is checked before anything is made from it.

    Parameters
    ----------
    path
        The file.
    backend, pool
        As in ``make_cache``.
    config
        Another layout, codec, dtype or capacity, of the same shape; default: the one that was saved. Tokens are decoded
        and stored anew where codec or dtype differ, else moved bit for bit. A ring takes the last tokens that it may
        hold, at their positions. Also says that so much room is meant where a file of few tokens asks for very much.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    CacheFileError
        If it is torn, altered, or no saved cache.
    ShapeError, CacheCapacityError
        If ``config`` cannot hold what was saved: another shape, fewer tokens, or tokens that a ring has given up.
    BackendNotFoundError, BackendUnavailableError, UnsupportedError
        As in ``make_cache``.
    """
    return load(path, config, lambda wanted: make_cache(wanted, backend=backend, pool=pool))


def backends() -> list[BackendInfo]:
    """List every registered backend, available or not, and every plug-in that failed to load, with the reason."""
    return registry.infos()


def get_backend(name: str) -> Backend:
    """Give a backend by name, imported at its first use.

    Raises
    ------
    BackendNotFoundError
        If there is none of that name.
    BackendUnavailableError
        If it cannot run here.
    PluginError
        If its plug-in is broken or ambiguous.
    """
    return registry.load(name)


def register(plugin: object, name: str | None = None) -> None:
    """Add a plug-in by hand: a module or object with ``attnkit_register_backends``, or a ``BackendSpec``.

    Raises
    ------
    PluginError
        If it gives no backend, or one whose name is taken; nothing is registered then.
    """
    registry.register(plugin, name)


def _run(
    query: Array, key: Array, value: Array, options: Options, lse: bool, backend: BackendChoice
) -> AttentionOutput:
    arrays = _to_4d(query, key, value)
    intercept = None if type(query) is np.ndarray else interceptor(type(query))
    result = None if intercept is None else intercept(*arrays, options, lse, backend)
    if result is None:
        request, operands = describe_call(*arrays, options, lse)
        choice = current_choice(backend)
        selection = select(request, choice)
        record(request, selection, choice)
        result = selection.plan.run(*arrays, operands)
        tell = observer()
        if tell is not None:
            tell(Answered(request, operands, *arrays, result, selection.backend, selection.plan.path))
    return result if len(query.shape) == 4 else _drop_axes(result, 4 - len(query.shape))


def _to_4d(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Add leading axes of length 1, so that all three are 4-D."""
    check_array("query", query)
    check_array("key", key)
    check_array("value", value)
    rank = len(query.shape)
    if not (rank == len(key.shape) == len(value.shape) and 2 <= rank <= 4):
        shapes = ", ".join(str(list(array.shape)) for array in (query, key, value))
        raise ShapeError(
            "query, key, value must all be [B, H, T, D], all [H, T, D], or all [T, D] (key and value with K, S, E), "
            f"got {shapes}"
        )
    if rank == 4:
        return query, key, value
    axes = (None,) * (4 - rank)
    return query[axes], key[axes], value[axes]


def _drop_axes(result: AttentionOutput, count: int) -> AttentionOutput:
    first = (0,) * count
    return AttentionOutput(result.output[first], None if result.lse is None else result.lse[first])
