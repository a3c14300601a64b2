"""Torch's fused CPU kernel, as the tiled path uses it: block by block, with what is added to the scores as a mask.

Axes: ``b`` sequences, ``k`` key/value heads, ``G`` query heads of one key/value head, ``n`` queries of a block, ``w``
keys of a piece, ``D`` query/key head size, ``E`` value head size; ``t`` and ``s`` are all queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from attnkit import AttentionRequest
from attnkit_torch.tiling.pieces import Kind, Piece, pieces_of, tile_sizes
from attnkit_torch.tiling.running import Part, join, least
from attnkit_torch.tiling.scores import Terms
from attnkit_torch.tiling.stacks import Stack, stacks_of
from attnkit_torch.tiling.tiles import Group
from attnkit_torch.whole.fused import KERNEL, KERNEL_BACKWARD, with_rows

# Beyond these the scale is not for the kernel, which takes it as a float32.
_LEAST, _MOST = 2.0**-60, 2.0**60


class Call(NamedTuple):
    """What one call of the kernel is told beside its arrays.

    ``added`` goes to the scores, ``[n, w]`` or ``[b, k, G, n, w]``, where axes of length 1 broadcast. ``blind`` are the
    rows, ``[..., n]``, that see nothing for it: the kernel gives 0 and a senseless LSE there. ``causal`` is aligned to
    the top left.
    """

    scale: float
    causal: bool
    added: Tensor | None = None
    blind: Tensor | None = None


def takes(request: AttentionRequest) -> bool:
    """Tell whether the kernel may be used for a request, as far as that depends on the request alone."""
    plain = request.device == "cpu" and request.softcap is None
    return plain and (request.scale == 0 or _LEAST < abs(request.scale) < _MOST)


def fused(group: Group, terms: Terms, request: AttentionRequest) -> Fused:
    """Give what computes a group, in tiles that suit the kernel."""
    sizes = tile_sizes(request)
    return Fused(group if sizes is None else group.resized(sizes), terms)


class Fused:
    """Computes the blocks of a group by the fused kernel.

    Attributes
    ----------
    group
        The group.
    terms
        What goes into its scores.
    """

    def __init__(self, group: Group, terms: Terms) -> None:
        self.group, self.terms = group, terms
        self._calls: dict[tuple[int, int, int], Call] = {}

    def parts(self, query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Part]]:
        """Compute ``[b, k, G, t, D]`` with ``[b, k, s, D]`` and ``[b, k, s, E]``, block by block."""
        for stack in stacks_of(self.group.blocks(), self.terms):
            yield stack.rows, self._solve(stack, query[..., stack.rows, :].to(dtype), key, value)

    def _solve(self, stack: Stack, query: Tensor, key: Tensor, value: Tensor) -> Part:
        found: Part | None = None
        for piece in pieces_of(stack.first, self.terms):
            call = self.call(stack.first.rows, piece, query)
            if stack.height > 1:
                return self._solve_stack(stack, piece, call, query, key, value)
            keys = slice(piece.start, piece.stop)
            parts = key[..., keys, :].to(query.dtype), value[..., keys, :].to(query.dtype)
            found = join(found, forward(query, *parts, call))
        return cast(Part, found)

    def _solve_stack(self, stack: Stack, piece: Piece, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Part:
        """Compute blocks as the heads of a call, whose keys are views that overlap."""
        count, step = stack.height, query.shape[3] // stack.height
        width = piece.stop - piece.start
        keys = slice(piece.start, piece.stop + (count - 1) * step)
        size = max(query.shape[-1], value.shape[-1])
        arrays = (
            with_rows(array[..., keys, :].to(query.dtype), size).flatten(0, 1).unfold(1, width, step).mT
            for array in (key, value)
        )
        rows = query.unflatten(3, (count, step)).transpose(2, 3).flatten(3, 4)
        added, blind = cast(Tensor, call.added), call.blind
        mask = added.repeat(query.shape[2], 1)
        output, lse = KERNEL(_of_queries(rows, size), *arrays, 0.0, False, attn_mask=mask, scale=call.scale)
        back = (*query.shape[:2], count, query.shape[2], step)
        output = output[..., : value.shape[-1]].reshape(*back, -1).transpose(2, 3).flatten(3, 4)
        lse = lse.reshape(back).transpose(2, 3).flatten(3, 4)
        return _part(output, lse, None if blind is None else blind.repeat(count))

    def call(self, rows: slice, piece: Piece, like: Tensor) -> Call:
        """Give what the kernel is told about a piece; masks that look the same from block to block are made once."""
        if piece.kind is not Kind.MASKED and not self.terms.adds:
            return Call(self.terms.scale, piece.kind is Kind.CAUSAL)
        place = rows.stop - rows.start, piece.stop - piece.start, rows.start - piece.start
        if place in self._calls:
            return self._calls[place]
        made = self._masked(rows, piece, like)
        if self.terms.repeats:
            self._calls[place] = made
        return made

    def _masked(self, rows: slice, piece: Piece, like: Tensor) -> Call:
        keys = slice(piece.start, piece.stop)
        added = self.terms.added(rows, keys, like=like)
        added = like.new_zeros(()) if added is None else added
        if piece.kind is Kind.MASKED:
            added = torch.where(self.terms.hidden(rows, keys, like.device), -math.inf, added)
        added = added.expand(*added.shape[:-2], rows.stop - rows.start, piece.stop - piece.start)
        blind = added.amax(-1) == -math.inf
        return Call(self.terms.scale, False, added, blind if bool(blind.any()) else None)


def forward(query: Tensor, key: Tensor, value: Tensor, call: Call) -> Part:
    """Compute ``[b, k, G, n, D]`` with ``[b, k, w, D]`` and ``[b, k, w, E]``."""
    size = max(query.shape[-1], value.shape[-1])
    arrays = _of_queries(query, size), _of_keys(key, query, size), _of_keys(value, query, size)
    output, lse = KERNEL(*arrays, 0.0, call.causal, attn_mask=_mask(call.added, query), scale=call.scale)
    output = output[..., : value.shape[-1]].unflatten(0, query.shape[:2])
    return _part(output, lse.unflatten(0, query.shape[:2]), call.blind)


def _part(output: Tensor, lse: Tensor, blind: Tensor | None) -> Part:
    """Give what the kernel found: ``[b, k, G, n, E]`` and ``[b, k, G, n]``."""
    top = lse[..., None]
    if blind is None:
        return Part(output, top, None)
    blind = blind[..., None]
    total = torch.ones_like(top).masked_fill_(blind, 0)
    return Part(output.masked_fill(blind, 0), top.masked_fill(blind, least(top)), total)


def backward(
    grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, call: Call
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the shares of ``[b, k, G, n, D]``, ``[b, k, w, D]`` and ``[b, k, w, E]`` in the gradients.

    Output, its gradient and LSE ``[b, k, G, n]`` are those of the whole rows, of which the keys are only some.
    """
    size = max(query.shape[-1], value.shape[-1])
    arrays = _of_queries(query, size), _of_keys(key, query, size), _of_keys(value, query, size)
    ends = _of_queries(output, size), lse.flatten(0, 1)
    grads = KERNEL_BACKWARD(
        _of_queries(grad_output, size),
        *arrays,
        *ends,
        0.0,
        call.causal,
        attn_mask=_mask(call.added, query),
        scale=call.scale,
    )
    of_query, of_key, of_value = (grad.unflatten(0, query.shape[:2]) for grad in grads)
    shares = of_key[..., : key.shape[-1]].sum(2), of_value[..., : value.shape[-1]].sum(2)
    return of_query[..., : query.shape[-1]], *shares


def _of_queries(array: Tensor, size: int) -> Tensor:
    """Give ``[b * k, G, n, size]``."""
    return with_rows(array, size).flatten(0, 1)


def _of_keys(array: Tensor, query: Tensor, size: int) -> Tensor:
    """Give ``[b * k, G, w, size]``, those of a group at one address."""
    return with_rows(array, size).flatten(0, 1)[:, None].expand(-1, query.shape[2], -1, -1)


def _mask(added: Tensor | None, query: Tensor) -> Tensor | None:
    """Give a mask the axes of the kernel's arrays: ``[n, w]`` or ``[b * k, G, n, w]``; axes of length 1 broadcast."""
    if added is None or added.ndim == 2:
        return added
    if added.shape[0] == added.shape[1] == 1:
        return added[0]
    return added.expand(*query.shape[:2], -1, -1, -1).flatten(0, 1)
