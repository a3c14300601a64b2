"""From the arguments of a call to its request and operands: everything is checked here, once for all backends.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attnkit.arrays import DTYPES, device_of, dtype_name, needs_grad, type_names
from attnkit.checks import (
    check_float,
    check_home,
    common_device,
    finite_number,
    integers,
    lengths,
    positive_softcap,
)
from attnkit.errors import DTypeError, ShapeError
from attnkit.masks import Mask
from attnkit.request import AttentionRequest, Operands, round_length

Array = Any
IntArray = np.ndarray[Any, np.dtype[np.int64]]


class Described(NamedTuple):
    """Shape and element type of keys or values that are no array of their own, as ``describe_call`` takes them."""

    shape: tuple[int, ...]
    dtype: Any


class Options(NamedTuple):
    """The keyword arguments of ``attention`` as the caller gave them."""

    mask: Mask | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: Array | None = None
    alibi: Array | None = None
    sinks: Array | None = None
    query_lengths: Array | int | None = None
    kv_lengths: Array | int | None = None
    query_offset: Array | int | None = None
    key_offset: Array | int | None = None


NO_OPTIONS = Options()


def gather_options(
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
) -> Options:
    """Give the options of a call; where there is none, the shared ``NO_OPTIONS``, which is told by identity."""
    if (
        mask is None
        and scale is None
        and softcap is None
        and bias is None
        and alibi is None
        and sinks is None
        and query_lengths is None
        and kv_lengths is None
        and query_offset is None
        and key_offset is None
    ):
        return NO_OPTIONS
    return Options(mask, scale, softcap, bias, alibi, sinks, query_lengths, kv_lengths, query_offset, key_offset)


def describe_call(
    query: Array, key: Array, value: Array, options: Options, lse: bool, *, cached: bool = False
) -> tuple[AttentionRequest, Operands]:
    """Check a call with 4-D arrays and split it into request and operands.

    Parameters
    ----------
    query, key, value
        ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]``.
    options
        The rest of the arguments.
    lse
        Whether the log-sum-exp is wanted.
    cached
        Key and value come from a cache, which may store another element type.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        If anything does not fit; nothing was computed or changed.
    """
    plain_numpy = type(query) is type(key) is type(value) is np.ndarray
    device = "cpu" if plain_numpy else device_of(query) if cached else common_device(query, key, value)
    shapes, dtypes = (query.shape, key.shape, value.shape), (query.dtype, key.dtype, value.dtype)
    plain = plain_request(type_names(query), device, shapes, dtypes, lse, cached)
    if options is NO_OPTIONS:
        grad = not plain_numpy and needs_grad(query, key, value)
        return plain._replace(grad=True) if grad else plain, Operands(plain.query_length, key.shape[2])
    operands = bind(options, plain.batch, plain.num_heads, plain.query_length, key.shape[2], like=query)
    request = AttentionRequest(
        *plain[:11],
        plain.mask if options.mask is None else options.mask.structure,
        plain.scale if options.scale is None else finite_number("scale", options.scale),
        None if options.softcap is None else positive_softcap(options.softcap),
        None if operands.bias is None else dtype_name(operands.bias.dtype),
        operands.alibi is not None,
        operands.sinks is not None,
        operands.query_lengths is not None,
        operands.kv_lengths is not None,
        operands.query_offset is not None,
        operands.key_offset is not None,
        lse,
        not plain_numpy and needs_grad(query, key, value, operands.bias, operands.alibi, operands.sinks),
    )
    return request, operands


@lru_cache(maxsize=4096)
def plain_request(
    array_type: tuple[str, ...],
    device: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    dtypes: tuple[Any, Any, Any],
    lse: bool,
    cached: bool,
) -> AttentionRequest:
    """Check shapes and dtypes of query, key and value and give the request of a call without options.

    Cached, so that a call like an earlier one is not checked again.
    """
    (batch, heads, queries, head_dim), (kv_batch, kv_heads, keys, key_dim), value_shape = shapes
    if not batch == kv_batch or head_dim != key_dim or value_shape[:3] != (batch, kv_heads, keys):
        raise ShapeError(_mismatch(shapes))
    if (heads % kv_heads if kv_heads else heads) or not head_dim:
        raise ShapeError(_bad_heads(heads, kv_heads, head_dim))
    dtype, kv_dtype = dtype_name(dtypes[0]), dtype_name(dtypes[1])
    if dtype not in DTYPES or (not cached and not dtypes[0] == dtypes[1] == dtypes[2]):
        raise DTypeError(_bad_dtypes(dtypes))
    return AttentionRequest(
        *(array_type, device, dtype, kv_dtype),
        *(batch, heads, kv_heads, queries, round_length(keys), head_dim, value_shape[3]),
        scale=1.0 / math.sqrt(head_dim),
        lse=lse,
    )


def bind(options: Options, batch: int, heads: int, queries: int, keys: int, *, like: Array) -> Operands:
    """Check the arrays among the options against the sizes of the call and give them their canonical form."""
    documents, dense = _mask_arrays(options.mask, batch, heads, queries, keys, like)
    operands = Operands(
        queries,
        keys,
        None if options.bias is None else _score_array("bias", options.bias, batch, heads, queries, keys, like),
        None if options.alibi is None else _slopes(options.alibi, batch, heads, like),
        None if options.sinks is None else _head_array("sinks", options.sinks, ((heads,),), "[H]", heads, like),
        None if options.query_lengths is None else lengths("query_lengths", options.query_lengths, batch, queries, "T"),
        None if options.kv_lengths is None else lengths("kv_lengths", options.kv_lengths, batch, keys, "S"),
        None if options.query_offset is None else integers("query_offset", options.query_offset, batch),
        None if options.key_offset is None else integers("key_offset", options.key_offset, batch),
        documents,
        dense,
    )
    for name in ("query_lengths", "kv_lengths", "query_offset", "key_offset"):
        numbers = getattr(operands, name)
        if numbers is not None:
            _check_foreign(name, numbers, like)
    return operands


def _mask_arrays(
    mask: Mask | None, batch: int, heads: int, queries: int, keys: int, like: Array
) -> tuple[tuple[tuple[Array, Array], ...], tuple[Array, ...]]:
    if mask is None:
        return (), ()
    if not isinstance(mask, Mask):
        raise DTypeError(f"mask must be a Mask or None, got {type(mask).__name__}; wrap booleans in Mask.dense(...)")
    for ids_q, ids_k in mask.document_ids:
        _check_ids("ids_q", ids_q, batch, queries, "T", like)
        _check_ids("ids_k", ids_k, batch, keys, "S", like)
    for array in mask.dense_arrays:
        _check_foreign("mask.dense", array, like)
    dense = tuple(_broadcastable("mask.dense", array, batch, heads, queries, keys) for array in mask.dense_arrays)
    return mask.document_ids, dense


def _check_foreign(name: str, array: Array, like: Array) -> None:
    """Let NumPy arrays go with any query; those of other libraries must be where it is."""
    if not isinstance(array, np.ndarray):
        check_home(name, array, like)


def _check_ids(name: str, ids: Array, batch: int, length: int, axis: str, like: Array) -> None:
    _check_foreign(f"mask.documents: {name}", ids, like)
    if tuple(ids.shape) not in ((length,), (batch, length)):
        raise ShapeError(
            f"mask.documents: {name} must be [{axis}] = [{length}] or [B, {axis}] = [{batch}, {length}], "
            f"got {list(ids.shape)}"
        )


def _broadcastable(name: str, array: Array, batch: int, heads: int, queries: int, keys: int) -> Array:
    full = (batch, heads, queries, keys)
    shape = (1,) * (4 - len(array.shape)) + tuple(array.shape)
    if len(shape) != 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise ShapeError(f"{name} must broadcast to [B, H, T, S] = {list(full)}, got {list(array.shape)}")
    return array.reshape(shape)


def _score_array(name: str, array: Any, batch: int, heads: int, queries: int, keys: int, like: Array) -> Array:
    check_float(name, array, like)
    return _broadcastable(name, array, batch, heads, queries, keys)


def _slopes(array: Any, batch: int, heads: int, like: Array) -> Array:
    slopes = _head_array("alibi", array, ((heads,), (batch, heads)), "[H] or [B, H]", heads, like)
    return slopes[None] if slopes.ndim == 1 else slopes


def _head_array(
    name: str, array: Any, shapes: tuple[tuple[int, ...], ...], symbols: str, heads: int, like: Array
) -> Array:
    check_float(name, array, like)
    if tuple(array.shape) not in shapes:
        raise ShapeError(f"{name} must be {symbols} with H = {heads}, got shape {list(array.shape)}")
    return array


def _mismatch(shapes: tuple[tuple[int, ...], ...]) -> str:
    got = ", ".join(str(list(shape)) for shape in shapes)
    return f"query, key, value must be [B, H, T, D], [B, K, S, D], [B, K, S, E] with common B, K, S and D, got {got}"


def _bad_heads(heads: int, kv_heads: int, head_dim: int) -> str:
    if not head_dim:
        return "query and key must have head size D >= 1, got D = 0"
    return f"query heads H must be a multiple of key/value heads K (and K >= 1), got H = {heads}, K = {kv_heads}"


def _bad_dtypes(dtypes: tuple[Any, ...]) -> str:
    names = ", ".join(dtype_name(dtype) for dtype in dtypes)
    return f"query, key, value must share one of {', '.join(DTYPES)}, got {names}; convert them first"
