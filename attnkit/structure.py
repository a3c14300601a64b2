"""MaskStructure: the hashable part of a mask, and what its positional kinds mean.

``p`` is the position of a query, ``j`` the position of a key. Causal, window, prefix and chunked are *positional*:
around every query they leave an interval of keys that contains the query's own position, and the two ends of the
interval never move left as the query moves right. ``attnkit.schedule`` rests on these two facts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any
FARTHEST = 2**53
"""Largest size of a window, prefix or chunk, and largest offset: sums of them stay far inside 64 bits."""


class MaskStructure(NamedTuple):
    """The hashable part of a mask: what keys a cache of plans, and all that a positional mask is.

    Attributes
    ----------
    causal, left, right, prefix, chunks
        The positional kinds: ``left`` counts the token itself, ``None`` is "not restricted".
    documents, dense
        How many ``documents`` and ``dense`` terms there are; their arrays are data of the call.
    """

    causal: bool = False
    left: int | None = None
    right: int | None = None
    prefix: int | None = None
    chunks: tuple[int, ...] = ()
    documents: int = 0
    dense: int = 0

    @property
    def positional(self) -> bool:
        """Whether any kind in it looks at positions."""
        return self != MaskStructure(documents=self.documents, dense=self.dense)

    def first_key(self, position: Array, xp: Any = np) -> Array | None:
        """Give the first visible key position of queries at ``position``, or ``None`` for "no limit"."""
        low = None if self.left is None else position - (self.left - 1)
        for size in self.chunks:
            start = position // size * size
            low = start if low is None else xp.maximum(low, start)
        return low

    def last_key(self, position: Array, xp: Any = np) -> Array | None:
        """Give the last visible key position of queries at ``position``, or ``None`` for "no limit"."""
        limits = [position] if self.causal else []
        if self.right is not None:
            limits.append(position + self.right)
        if self.prefix is not None:
            # where() and not maximum(): a plain number next to an array is not portable there.
            limits.append(xp.where(position < self.prefix, position * 0 + (self.prefix - 1), position))
        limits.extend(position // size * size + (size - 1) for size in self.chunks)
        high = None
        for limit in limits:
            high = limit if high is None else xp.minimum(high, limit)
        return high


def visible(structure: MaskStructure, rows: Array, keys: Array, xp: Any = np) -> Array:
    """Give the visibility of the positional kinds: ``rows`` and ``keys`` are positions that broadcast together."""
    shown = (rows == rows) & (keys == keys)
    first, last = structure.first_key(rows, xp), structure.last_key(rows, xp)
    if first is not None:
        shown = shown & (keys >= first)
    if last is not None:
        shown = shown & (keys <= last)
    return shown


def same_document(ids_q: Array, ids_k: Array) -> Array:
    """Give ``[T, S]``, or ``[B, 1, T, S]`` for batched ids, ``True`` where the ids are equal."""
    if ids_q.ndim == 1 and ids_k.ndim == 1:
        return ids_q[:, None] == ids_k[None, :]
    ids_q, ids_k = (ids[None] if ids.ndim == 1 else ids for ids in (ids_q, ids_k))
    return ids_q[:, None, :, None] == ids_k[:, None, None, :]
