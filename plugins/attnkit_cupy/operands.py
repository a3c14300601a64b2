"""From the operands of a call to arrays that kernels read, and from these to members of AttentionParams.

Axes: ``B`` sequences, ``H`` query heads, ``T`` queries, ``S`` keys.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

from attnkit import Operands
from attnkit_cupy.layout import addressable, element_strides, element_type, readable
from attnkit_cupy.params import ELEMENT_TYPES, Params
from attnkit_cupy.runtime import Runtime, ptr

Array = Any
Documents = tuple[Array, Array]

MOST_DOCUMENTS = 2
_NUMBERS = ("query_lengths", "kv_lengths", "query_offset", "key_offset")


def fill_operands(params: Params, operands: Operands, runtime: Runtime) -> list[Array]:
    """Set the members that tell of the operands; gives the arrays, which must outlive the launch."""
    if _is_plain(operands):
        return []
    xp = runtime.xp
    kept = [_fill_vector(params, name, getattr(operands, name), "int64", xp) for name in _NUMBERS]
    kept.append(_fill_vector(params, "sinks", operands.sinks, "float32", xp))
    kept.append(_fill_alibi(params, operands.alibi, xp))
    kept.append(_fill_bias(params, operands.bias, xp))
    documents, dense = folded(operands, xp)
    kept.append(_fill_dense(params, dense))
    kept.extend(_fill_documents(params, documents))
    return kept


def _is_plain(operands: Operands) -> bool:
    """Tell at little cost, in the usual case, that there is nothing but the lengths of the axes."""
    _, _, *arrays, documents, dense = operands
    return not documents and not dense and all(array is None for array in arrays)


def folded(operands: Operands, xp: Any) -> tuple[list[Documents], Array | None]:
    """Give at most two pairs of document ids, int64, and at most one dense mask that holds all the rest."""
    documents = [(_vector(ids_q, "int64", xp), _vector(ids_k, "int64", xp)) for ids_q, ids_k in operands.documents]
    dense = [addressable(xp.asarray(array), xp) for array in operands.dense]
    dense += [_same_document(*pair) for pair in documents[MOST_DOCUMENTS:]]
    return documents[:MOST_DOCUMENTS], reduce(and_, dense) if dense else None


def _same_document(ids_q: Array, ids_k: Array) -> Array:
    """Compare ids ``[T]`` or ``[B, T]`` with ids ``[S]`` or ``[B, S]``: ``[1 or B, 1, T, S]``."""
    ids_q, ids_k = (ids[None] if ids.ndim == 1 else ids for ids in (ids_q, ids_k))
    return ids_q[:, None, :, None] == ids_k[:, None, None, :]


def _vector(numbers: Array, dtype: str, xp: Any) -> Array:
    """Give numbers on the device, converted by value, with a contiguous last axis."""
    return readable(xp.asarray(numbers, dtype=dtype), xp)


def _fill_vector(params: Params, name: str, numbers: Array | None, dtype: str, xp: Any) -> Array | None:
    if numbers is None:
        return None
    numbers = _vector(numbers, dtype, xp)
    params.set(**{name: ptr(numbers)})
    return numbers


def _fill_alibi(params: Params, alibi: Array | None, xp: Any) -> Array | None:
    slopes = _fill_vector(params, "alibi", alibi, "float32", xp)
    if slopes is not None:
        params.set(alibi_stride=element_strides(slopes)[0])
    return slopes


def _fill_bias(params: Params, bias: Array | None, xp: Any) -> Array | None:
    if bias is None:
        return None
    bias = addressable(xp.asarray(bias), xp)
    params.set(bias=ptr(bias), bias_type=ELEMENT_TYPES[element_type(bias)])
    params.fill("bias_strides", element_strides(bias))
    return bias


def _fill_dense(params: Params, dense: Array | None) -> Array | None:
    if dense is None:
        return None
    params.set(dense=ptr(dense))
    params.fill("dense_strides", element_strides(dense))
    return dense


def _fill_documents(params: Params, documents: list[Documents]) -> list[Array]:
    arrays = [ids for pair in documents for ids in pair]
    params.fill("query_documents", tuple(ptr(ids_q) for ids_q, _ in documents))
    params.fill("key_documents", tuple(ptr(ids_k) for _, ids_k in documents))
    params.fill("document_strides", tuple(element_strides(ids)[0] if ids.ndim == 2 else 0 for ids in arrays))
    return arrays
