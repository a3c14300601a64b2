"""What comes back through a block of queries: its share of every gradient.

Axes: ``b`` sequences, ``k`` key/value heads, ``G`` query heads of one key/value head, ``n`` queries of a block, ``w``
keys of a tile, ``D`` query/key head size, ``E`` value head size; ``t`` and ``s`` are all queries and keys. Source: Dao
et al., FlashAttention (2022), algorithm 4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnkit import Tile
from attnkit_torch.tiling import kernel
from attnkit_torch.tiling.pieces import pieces_of
from attnkit_torch.tiling.scores import Terms, cut_tile, multiply
from attnkit_torch.tiling.tiles import Block, Group
from attnkit_torch.tiling.wild import calm

_ENDLESS = 1e30
"""An LSE beyond every score."""


class Rows(NamedTuple):
    """Queries, and what the forward pass found for them.

    ``query`` and ``grad_query``, which is added to, are ``[b, k, G, n, D]``; ``output`` and its gradient are
    ``[b, k, G, n, E]``. ``lse`` and ``gain``, what every score gains by its weight, are ``[b, k, G, n]``.
    """

    query: Tensor
    output: Tensor
    grad_output: Tensor
    lse: Tensor
    gain: Tensor
    grad_query: Tensor

    def without(self, rows: Tensor) -> Rows:
        """Give all rows, but nothing comes back for some, ``[b, k, G, n]``; they do not even have weights."""
        return self._replace(
            query=calm(self.query, rows),
            grad_output=calm(self.grad_output, rows),
            lse=self.lse.masked_fill(rows, _ENDLESS),
            gain=self.gain.masked_fill(rows, 0),
        )

    def cut(self, rows: slice) -> Rows:
        """Give some of the rows, in the type of the accumulation, and 0 for an LSE of ``-inf``."""
        dtype, lse = self.lse.dtype, self.lse[..., rows]
        return Rows(
            query=self.query[..., rows, :].to(dtype),
            output=self.output[..., rows, :].to(dtype),
            grad_output=calm(self.grad_output[..., rows, :].to(dtype), lse == -math.inf),
            lse=lse.masked_fill(lse == -math.inf, 0),
            gain=self.gain[..., rows],
            grad_query=self.grad_query[..., rows, :],
        )


class Totals(NamedTuple):
    """A group's views of what its blocks add to: ``[b, k, s, D]``, ``[b, k, s, E]``, and as in ``Terms``."""

    key: Tensor
    value: Tensor
    bias: Tensor | None
    slopes: Tensor | None


class TiledShare(NamedTuple):
    """Differentiates the blocks of a group tile by tile, in plain operations."""

    group: Group
    terms: Terms
    key: Tensor
    value: Tensor
    totals: Totals

    def add(self, block: Block, rows: Rows) -> None:
        """Add what comes back through a block."""
        found = torch.zeros_like(rows.query)
        for tile in block.tiles:
            found += self._add_tile(tile, block.rows, rows)
        multiply(found, self.terms.scale)
        rows.grad_query.add_(found)

    def _add_tile(self, tile: Tile, place: slice, rows: Rows) -> Tensor:
        """Add to the totals, and give the share of the queries without its scale."""
        keys, masked = slice(tile.start, tile.stop), tile.kind == "partial"
        query, grad_output = rows.query.flatten(2, 3), rows.grad_output.flatten(2, 3)
        key, value = (array[..., keys, :].to(query.dtype) for array in (self.key, self.value))
        scores = self.terms.products(rows.query, key)
        slope = None if self.terms.softcap is None else 1 - (scores / self.terms.softcap) ** 2
        weights = self.terms.complete(scores, place, keys, masked=masked).sub_(rows.lse[..., None]).exp_()
        self.totals.value[..., keys, :] += weights.flatten(2, 3).mT @ grad_output

        grad = (grad_output @ value.mT).view_as(weights).add_(rows.gain[..., None]).mul_(weights)
        # What lies at a hidden key may have overflowed, and 0 times infinity is NaN.
        hidden = weights == 0 if masked or self.terms.bias is not None else None
        if hidden is not None:
            grad.masked_fill_(hidden, 0)
        self._add_terms(grad, place, keys)
        if slope is not None:
            grad.mul_(slope if hidden is None else slope.masked_fill_(hidden, 0))
        share = grad.flatten(2, 3).mT @ query
        multiply(share, self.terms.scale)
        self.totals.key[..., keys, :] += share
        return (grad.flatten(2, 3) @ key).view_as(rows.query)

    def _add_terms(self, grad: Tensor, rows: slice, keys: slice) -> None:
        """Add what comes back to bias and slopes from the gradient of the scores, ``[b, k, G, n, w]``."""
        if self.totals.bias is not None:
            total = cut_tile(self.totals.bias, rows, keys)
            total += grad.sum_to_size(total.shape)
        if self.totals.slopes is not None:
            distance = self.terms.distance(rows, keys, like=grad)
            self.totals.slopes.sub_((grad * distance).sum_to_size(self.totals.slopes.shape))


class FusedShare(NamedTuple):
    """Differentiates the blocks of a group by the fused kernel, which makes the gain of the output alone."""

    fused: kernel.Fused
    key: Tensor
    value: Tensor
    totals: Totals

    @property
    def group(self) -> Group:
        """The group, in blocks that suit the kernel."""
        return self.fused.group

    def add(self, block: Block, rows: Rows) -> None:
        """Add what comes back through a block."""
        found = torch.zeros_like(rows.query)
        for piece in pieces_of(block, self.fused.terms):
            keys = slice(piece.start, piece.stop)
            key, value = (array[..., keys, :].to(found.dtype) for array in (self.key, self.value))
            call = self.fused.call(block.rows, piece, rows.query)
            shares = kernel.backward(rows.grad_output, rows.query, key, value, rows.output, rows.lse, call)
            found += shares[0]
            self.totals.key[..., keys, :] += shares[1]
            self.totals.value[..., keys, :] += shares[2]
        rows.grad_query.add_(found)
