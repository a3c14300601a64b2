"""AttentionRequest, one hashable description of a call, and Operands, the data that belongs to it.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.

The split is what makes calls cheap: the request keys every cache of plans, and the operands (arrays, lengths, offsets)
never enter a key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnkit.structure import MaskStructure, same_document, visible

Array = Any


class Bounds(NamedTuple):
    """The valid lengths and the positions of one sequence, as host integers."""

    query_length: int
    key_length: int
    query_position: int
    key_position: int


class Operands(NamedTuple):
    """The data of one call besides query, key and value, in the caller's array library.

    Attributes
    ----------
    query_length, key_length
        ``T`` and ``S`` as host integers.
    bias
        Additive scores, 4-D, broadcastable to ``[B, H, T, S]``.
    alibi
        Slopes ``[1, H]`` or ``[B, H]``.
    sinks
        Sink logits ``[H]``.
    query_lengths, kv_lengths, query_offset, key_offset
        Integers ``[B]``; ``None`` where the call has the default.
    documents
        ``(ids_q, ids_k)`` pairs, ``[T]`` or ``[B, T]`` and ``[S]`` or ``[B, S]``.
    dense
        Boolean arrays, 4-D, broadcastable to ``[B, H, T, S]``.
    """

    query_length: int
    key_length: int
    bias: Array | None = None
    alibi: Array | None = None
    sinks: Array | None = None
    query_lengths: Array | None = None
    kv_lengths: Array | None = None
    query_offset: Array | None = None
    key_offset: Array | None = None
    documents: tuple[tuple[Array, Array], ...] = ()
    dense: tuple[Array, ...] = ()

    def bounds(self, sequence: int) -> Bounds:
        """Give valid lengths and positions of one sequence; reads host integers, so keep lengths on the host."""
        queries = self.query_length if self.query_lengths is None else int(self.query_lengths[sequence])
        keys = self.key_length if self.kv_lengths is None else int(self.kv_lengths[sequence])
        key_position = 0 if self.key_offset is None else int(self.key_offset[sequence])
        aligned = key_position + keys - queries
        query_position = aligned if self.query_offset is None else int(self.query_offset[sequence])
        return Bounds(queries, keys, query_position, key_position)

    def positions(self, xp: Any = np) -> tuple[Array, Array]:
        """Give positions of queries and keys, ``[T, 1]`` and ``[1, S]``, or ``[B, 1, T, 1]`` and ``[B, 1, 1, S]``."""
        rows, keys = xp.arange(self.query_length)[:, None], xp.arange(self.key_length)[None, :]
        key_start = _column(self.key_offset, 0)
        if self.query_offset is not None:
            query_start = _column(self.query_offset, 0)
        else:
            valid_keys, valid_queries = (
                _column(self.kv_lengths, self.key_length),
                _column(self.query_lengths, self.query_length),
            )
            query_start = key_start + valid_keys - valid_queries
        return rows + query_start, keys + key_start


class AttentionRequest(NamedTuple):
    """Everything about a call that a backend may decide by; hashable, without data.

    Attributes
    ----------
    array_type
        Qualified names of the query's class and its bases: ``("numpy.ndarray",)``.
    device
        ``"cpu"``, ``"cuda:0"``.
    dtype, kv_dtype
        Element type of the query, and of key and value; they differ only for a cache that stores another type.
    batch, num_heads, num_kv_heads, query_length, head_dim, value_dim
        ``B``, ``H``, ``K``, ``T``, ``D``, ``E``.
    key_length
        ``S`` rounded up to a power of two, so that a growing cache keeps its plan; the exact one is in the operands.
    mask
        Structure of the mask.
    scale, softcap
        Resolved scale; soft-cap or ``None``.
    bias
        Element type of the bias, or ``None`` without one.
    alibi, sinks, query_lengths, kv_lengths, query_offset, key_offset
        Whether the call has them.
    lse
        Whether the log-sum-exp is wanted.
    grad
        Whether an input takes part in automatic differentiation.
    """

    array_type: tuple[str, ...]
    device: str
    dtype: str
    kv_dtype: str
    batch: int
    num_heads: int
    num_kv_heads: int
    query_length: int
    key_length: int
    head_dim: int
    value_dim: int
    mask: MaskStructure = MaskStructure()
    scale: float = 1.0
    softcap: float | None = None
    bias: str | None = None
    alibi: bool = False
    sinks: bool = False
    query_lengths: bool = False
    kv_lengths: bool = False
    query_offset: bool = False
    key_offset: bool = False
    lse: bool = False
    grad: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key/value head, ``H // K``."""
        return self.num_heads // self.num_kv_heads if self.num_kv_heads else 0

    @property
    def accumulate(self) -> str:
        """Element type to accumulate in: float64 for float64, else float32."""
        return "float64" if "float64" in (self.dtype, self.kv_dtype) else "float32"

    def visible(self, operands: Operands, xp: Any = np) -> Array:
        """Give the keys that each query sees, ``True`` = visible, broadcastable to ``[B, H, T, S]``.

        Lengths, positions, documents, dense masks and ``-inf`` in the bias are all in it; rows of padding see nothing.
        """
        rows, keys = operands.positions(xp)
        shown = visible(self.mask, rows, keys, xp)
        if operands.kv_lengths is not None:
            shown = shown & (xp.arange(operands.key_length)[None, :] < _column(operands.kv_lengths, 0))
        if operands.query_lengths is not None:
            shown = shown & (xp.arange(operands.query_length)[:, None] < _column(operands.query_lengths, 0))
        for ids_q, ids_k in operands.documents:
            shown = shown & same_document(ids_q, ids_k)
        for array in operands.dense:
            shown = shown & array
        return shown if operands.bias is None else shown & (operands.bias != -xp.inf)

    def score_bias(self, operands: Operands, xp: Any = np) -> Array | None:
        """Give what is added to the scores: bias plus ALiBi ``-slope * |p - j|``, or ``None`` without either.

        Broadcastable to ``[B, H, T, S]``, in the accumulation type.
        """
        dtype = getattr(xp, self.accumulate)
        total = None if operands.bias is None else xp.astype(operands.bias, dtype)
        if operands.alibi is None:
            return total
        rows, keys = operands.positions(xp)
        slopes = xp.astype(operands.alibi, dtype)[:, :, None, None]
        ramp = -slopes * xp.astype(xp.abs(rows - keys), dtype)
        return ramp if total is None else total + ramp


def round_length(length: int) -> int:
    """Round a key length up to a power of two (0 stays 0)."""
    return 1 << (length - 1).bit_length() if length else 0


def _column(numbers: Array | None, default: int) -> Any:
    return default if numbers is None else numbers[:, None, None, None]
