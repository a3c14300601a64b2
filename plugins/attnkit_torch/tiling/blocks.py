"""The forward pass of the tiled path: blocks of queries walk the tiles that their mask leaves; never a T x S array.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G`` query heads of one key/value head, ``T`` queries,
``S`` keys, ``D`` query/key head size, ``E`` value head size; ``b``, ``k``, ``t`` and ``s`` are a group's share,
``n`` queries of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from attnkit import AttentionRequest, Operands
from attnkit_torch.tiling import kernel, wild
from attnkit_torch.tiling.running import Part, finish, join, softmax
from attnkit_torch.tiling.scores import Terms
from attnkit_torch.tiling.tiles import Block, Group, groups


class Result(NamedTuple):
    """A group's views of output ``[b, k, G, t, E]`` and LSE ``[b, k, G, t]``, and its sinks ``[k, G, 1, 1]``."""

    output: Tensor
    lse: Tensor
    sinks: Tensor | None


def attend(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
) -> tuple[Tensor, Tensor]:
    """Give output ``[B, H, T, E]`` in the query's dtype and LSE ``[B, H, T]`` in that of the accumulation."""
    sinks = None if operands.sinks is None else operands.sinks.to(accumulation(request))
    output, lse = of_empty_rows(query, value.shape[3], sinks, accumulation(request))
    for group in groups(operands, request):
        arrays = group.of_queries(query), group.of_keys(key), group.of_keys(value)
        own = None if sinks is None else sinks[group.heads].reshape(*arrays[0].shape[1:3], 1, 1)
        result = Result(group.of_queries(output), group.of_queries(lse), own)
        _attend_group(group, *arrays, terms_of(group, operands, request), request, result)
    return output, lse


def of_empty_rows(query: Tensor, value_dim: int, sinks: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]`` of rows that see no key, to be written over for the others."""
    lse = query.new_full(query.shape[:3], -math.inf, dtype=dtype)
    if sinks is not None:
        lse.copy_(sinks[:, None])
    return query.new_zeros((*query.shape[:3], value_dim)), lse


def _attend_group(
    group: Group, query: Tensor, key: Tensor, value: Tensor, terms: Terms, request: AttentionRequest, result: Result
) -> None:
    """Choose how a group is computed, and write its result."""
    if not kernel.takes(request):
        _run(Tiled(group, terms), query, key, value, result)
        return
    fused = kernel.fused(group, terms, request)
    found = wild.find(group, terms, (query,), (key,))
    if found is None:
        _run(fused, query, key, value, result)
        return
    _run(fused, wild.calm(query, found.rows), wild.calm(key, found.keys), value, result)
    _mend(Tiled(group, terms), query, key, value, result, found.rows)


def _run(solver: Tiled | kernel.Fused, query: Tensor, key: Tensor, value: Tensor, result: Result) -> None:
    """Compute a group block by block."""
    for rows, part in solver.parts(query, key, value, result.lse.dtype):
        result.output[..., rows, :], result.lse[..., rows] = finish(part, result.sinks)


def _mend(tiled: Tiled, query: Tensor, key: Tensor, value: Tensor, result: Result, wrong: Tensor) -> None:
    """Compute the rows ``wrong``, ``[b, k, G, t]``, once more."""
    for block in tiled.group.blocks():
        place = wrong[..., block.rows]
        if bool(place.any()):
            part = tiled.solve(block, query[..., block.rows, :].to(result.lse.dtype), key, value)
            output, lse = finish(part, result.sinks)
            old, old_lse = result.output[..., block.rows, :], result.lse[..., block.rows]
            old.copy_(torch.where(place[..., None], output, old))
            old_lse.copy_(torch.where(place, lse, old_lse))


def accumulation(request: AttentionRequest) -> torch.dtype:
    """Give the dtype of the accumulation."""
    return torch.float64 if request.accumulate == "float64" else torch.float32


def terms_of(group: Group, operands: Operands, request: AttentionRequest) -> Terms:
    """Give the terms of a group's scores."""
    schedule, slopes = group.schedule, operands.alibi
    if slopes is not None:
        slopes = group.of_scores(slopes.to(accumulation(request))[..., None, None])
    sequence, head = group.sequences.start, group.heads.start
    return Terms(
        structure=request.mask,
        query_position=schedule.query_position,
        key_position=schedule.key_position,
        scale=request.scale,
        softcap=request.softcap,
        bias=None if operands.bias is None else group.of_scores(operands.bias),
        slopes=slopes,
        documents=tuple(
            (q if q.ndim == 1 else q[sequence], k if k.ndim == 1 else k[sequence]) for q, k in operands.documents
        ),
        dense=tuple(d[sequence if d.shape[0] > 1 else 0, head if d.shape[1] > 1 else 0] for d in operands.dense),
    )


class Tiled(NamedTuple):
    """Computes the blocks of a group by its tiles, in plain operations."""

    group: Group
    terms: Terms

    def parts(self, query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Part]]:
        """Compute ``[b, k, G, t, D]`` with ``[b, k, s, D]`` and ``[b, k, s, E]``, block by block."""
        for block in self.group.blocks():
            yield block.rows, self.solve(block, query[..., block.rows, :].to(dtype), key, value)

    def solve(self, block: Block, query: Tensor, key: Tensor, value: Tensor) -> Part:
        """Compute a block: ``[b, k, G, n, D]`` with ``[b, k, s, D]`` and ``[b, k, s, E]``."""
        found: Part | None = None
        for tile in block.tiles:
            keys = slice(tile.start, tile.stop)
            scores = self.terms.products(query, key[..., keys, :].to(query.dtype))
            self.terms.complete(scores, block.rows, keys, masked=tile.kind == "partial")
            found = join(found, softmax(scores, value[..., keys, :].to(query.dtype)))
        return cast(Part, found)
