"""A part of a call, described as a call of its own: ``request.visible`` and ``request.score_bias`` take it as it is.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnkit import Operands
from attnkit_numpy.layout import Array


class Part(NamedTuple):
    """A range of each axis; every slice has a start and a stop."""

    sequences: slice
    heads: slice
    rows: slice
    keys: slice


def part_of(operands: Operands, part: Part) -> Operands:
    """Cut the operands down to a part; its positions are spelt out, and its sinks are left out."""
    bounds = np.array([operands.bounds(b) for b in range(part.sequences.start, part.sequences.stop)])
    queries, keys, query_position, key_position = bounds.T
    rows, columns = part.rows.stop - part.rows.start, part.keys.stop - part.keys.start
    return Operands(
        rows,
        columns,
        bias=None if operands.bias is None else cut(operands.bias, *part),
        alibi=None if operands.alibi is None else cut(operands.alibi, part.sequences, part.heads),
        query_lengths=np.clip(queries - part.rows.start, 0, rows),
        kv_lengths=np.clip(keys - part.keys.start, 0, columns),
        query_offset=query_position + part.rows.start,
        key_offset=key_position + part.keys.start,
        documents=tuple(
            (_ids(q, part.sequences, part.rows), _ids(k, part.sequences, part.keys)) for q, k in operands.documents
        ),
        dense=tuple(cut(array, *part) for array in operands.dense),
    )


def cut(array: Array, *ranges: slice) -> Array:
    """Cut the leading axes; those of length 1 broadcast and stay."""
    return array[tuple(slice(None) if size == 1 else kept for size, kept in zip(array.shape, ranges, strict=False))]


def _ids(ids: Array, sequences: slice, tokens: slice) -> Array:
    return ids[tokens] if ids.ndim == 1 else ids[sequences, tokens]
