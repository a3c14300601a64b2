"""Who sees whom, in plain NumPy: one method for each rule of A3 to A5 that can be got wrong.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length. ``p`` is the position of a query, ``j`` that
of a key; both broadcast to ``[B, H, T, S]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attnkit as ak

Array = Any


class Visibility:
    """The visible keys of every row."""

    def visible(self, operands: ak.Operands, request: ak.AttentionRequest) -> Array:
        """Tell which keys each row sees, broadcastable to ``[B, H, T, S]``."""
        mask, (p, j) = request.mask, self.positions(operands)
        shown = self.valid(operands.kv_lengths, operands.key_length)[:, None, None, :]
        shown = shown & self.valid(operands.query_lengths, operands.query_length)[:, None, :, None]
        if mask.causal:
            shown = shown & self.causal(p, j)
        if mask.left is not None or mask.right is not None:
            shown = shown & self.window(p, j, mask.left, mask.right)
        if mask.prefix is not None:
            shown = shown & self.prefix(p, j, mask.prefix)
        for size in mask.chunks:
            shown = shown & self.chunked(p, j, size)
        for ids_q, ids_k in operands.documents:
            shown = shown & self.documents(np.atleast_2d(ids_q), np.atleast_2d(ids_k))
        for array in operands.dense:
            shown = shown & self.dense(array)
        return shown if operands.bias is None else shown & (operands.bias != -np.inf)

    def positions(self, operands: ak.Operands) -> tuple[Array, Array]:
        """Give the positions of queries and keys."""
        return operands.positions()

    def valid(self, lengths: Array | None, size: int) -> Array:
        """Tell what lies within the lengths, ``[B, size]`` or ``[1, size]``."""
        return np.ones((1, size), bool) if lengths is None else np.arange(size) < lengths[:, None]

    def causal(self, p: Array, j: Array) -> Array:
        """Show what is not after the query."""
        return j <= p

    def window(self, p: Array, j: Array, left: int | None, right: int | None) -> Array:
        """Show ``left`` keys up to the query itself, and ``right`` after it."""
        shown = np.ones(np.broadcast_shapes(p.shape, j.shape), bool)
        if left is not None:
            shown &= p - left < j
        return shown if right is None else shown & (j <= p + right)

    def prefix(self, p: Array, j: Array, n: int) -> Array:
        """Show the first ``n`` keys and what is not after the query."""
        return (j < n) | (j <= p)

    def chunked(self, p: Array, j: Array, n: int) -> Array:
        """Show what lies in the same chunk of ``n``."""
        return p // n == j // n

    def documents(self, ids_q: Array, ids_k: Array) -> Array:
        """Show what has the same id."""
        return ids_q[:, None, :, None] == ids_k[:, None, None, :]

    def dense(self, array: Array) -> Array:
        """Show what is true."""
        return array
