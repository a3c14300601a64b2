"""The scores of one tile: products, scale, soft-cap, bias, ALiBi and mask, in the type of the accumulation.

Axes: ``b`` sequences, ``k`` key/value heads, ``G`` query heads of one key/value head, ``n`` queries and ``w`` keys of a
tile, ``D`` query/key head size; ``t`` and ``s`` are all queries and keys.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnkit import MaskStructure

# Beyond these a factor is no ordinary float32 number.
_LEAST, _MOST = 2.0**-100, 2.0**100


class Terms(NamedTuple):
    """Everything that goes into the scores besides queries and keys.

    Attributes
    ----------
    structure
        The mask's structure.
    query_position, key_position
        Positions of query 0 and key 0.
    scale, softcap
        As in the request.
    bias
        ``[b, k, G, t, s]``; axes of length 1 broadcast.
    slopes
        ALiBi's, ``[b, k, G, 1, 1]``, in the type of the accumulation.
    documents
        ``(ids_q [t], ids_k [s])`` pairs.
    dense
        Boolean arrays ``[t, s]``; axes of length 1 broadcast.
    """

    structure: MaskStructure
    query_position: int
    key_position: int
    scale: float
    softcap: float | None
    bias: Tensor | None
    slopes: Tensor | None
    documents: tuple[tuple[Tensor, Tensor], ...]
    dense: tuple[Tensor, ...]

    @property
    def adds(self) -> bool:
        """Whether anything is added to the products."""
        return self.bias is not None or self.slopes is not None

    @property
    def repeats(self) -> bool:
        """Whether what is hidden, and nothing is added, depends on the distance of query and key alone."""
        arrays = self.adds or self.documents or self.dense
        return not (arrays or self.structure.prefix is not None or self.structure.chunks)

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        """Give scaled and capped products ``[b, k, G, n, w]`` of ``[b, k, G, n, D]`` and ``[b, k, w, D]``."""
        scores = torch.matmul(query.flatten(2, 3), key.mT).unflatten(2, query.shape[2:4])
        multiply(scores, self.scale)
        if self.softcap is not None:
            cap(scores, self.softcap)
        return scores

    def complete(self, scores: Tensor, rows: slice, keys: slice, *, masked: bool) -> Tensor:
        """Turn products into scores, in place: add what is added, and put ``-inf`` at hidden keys.

        ``masked`` says whether the mask hides any of the tile.
        """
        added = self.added(rows, keys, like=scores)
        if added is not None:
            scores.add_(added)
        if self.bias is not None:
            # Not by the sum: an overflow to infinity minus infinity is NaN.
            scores.masked_fill_(cut_tile(self.bias, rows, keys) == -math.inf, -math.inf)
        if masked:
            scores.masked_fill_(self.hidden(rows, keys, scores.device), -math.inf)
        return scores

    def added(self, rows: slice, keys: slice, *, like: Tensor) -> Tensor | None:
        """Give bias plus ALiBi, broadcastable to ``[b, k, G, n, w]``, in the dtype of ``like``, or ``None``."""
        total = None if self.bias is None else cut_tile(self.bias, rows, keys).to(like.dtype)
        if self.slopes is None:
            return total
        ramp = self.slopes * -self.distance(rows, keys, like=like)
        return ramp if total is None else total + ramp

    def distance(self, rows: slice, keys: slice, *, like: Tensor) -> Tensor:
        """Give ``|p - j|``, ``[n, w]``, in the dtype of ``like``."""
        row, key = self._positions(rows, keys, like.device)
        return (row - key).abs_().to(like.dtype)

    def hidden(self, rows: slice, keys: slice, device: torch.device) -> Tensor:
        """Give the keys that the mask hides, ``[n, w]``, ``True`` = hidden."""
        row, key = self._positions(rows, keys, device)
        first, last = self.structure.first_key(row, torch), self.structure.last_key(row, torch)
        hidden = torch.zeros((), dtype=torch.bool, device=device).expand(len(row), key.shape[1])
        if first is not None:
            hidden = hidden | (key < first)
        if last is not None:
            hidden = hidden | (key > last)
        for ids_q, ids_k in self.documents:
            hidden = hidden | (ids_q[rows, None] != ids_k[None, keys])
        for array in self.dense:
            hidden = hidden | ~cut_tile(array, rows, keys)
        return hidden

    def _positions(self, rows: slice, keys: slice, device: torch.device) -> tuple[Tensor, Tensor]:
        """Give positions of queries and keys, ``[n, 1]`` and ``[1, w]``."""
        row = torch.arange(self.query_position + rows.start, self.query_position + rows.stop, device=device)
        key = torch.arange(self.key_position + keys.start, self.key_position + keys.stop, device=device)
        return row[:, None], key[None, :]


def multiply(scores: Tensor, scale: float) -> None:
    """Multiply scores by ``scale``, in place; it may be out of the range of their dtype."""
    if scale == 0 or _LEAST < abs(scale) < _MOST:
        scores.mul_(scale)
        return
    factor, exponent = math.frexp(scale)
    scores.mul_(factor)
    while exponent:  # powers of two, which are exact
        step = max(-100, min(100, exponent))
        scores.mul_(2.0**step)
        exponent -= step


def cap(scores: Tensor, softcap: float) -> None:
    """Replace scores by ``softcap * tanh(scores / softcap)``, in place."""
    if _LEAST < softcap < _MOST:
        scores.div_(softcap).tanh_().mul_(softcap)
    else:
        scores.copy_(softcap * torch.tanh(scores.double() / softcap))


def cut_tile(array: Tensor, rows: slice, keys: slice) -> Tensor:
    """Cut the last two axes; those of length 1 broadcast and stay."""
    rows = slice(None) if array.shape[-2] == 1 else rows
    return array[..., rows, slice(None) if array.shape[-1] == 1 else keys]
