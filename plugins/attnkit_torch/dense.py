"""The dense path: all scores at once, the definition in plain differentiable torch operations.

Gradients come from torch's autograd, of any order. What nobody sees is cut out before the products, and what only some
queries see before anything that could make a NaN of it, so that neither results nor gradients know of it.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnkit import AttentionOutput, AttentionRequest, Operands, Reason

Run = Callable[[Tensor, Tensor, Tensor, Operands], AttentionOutput]

# Scores that are held at a time where no gradient needs them later; larger batches are cut.
_MOST = 4_000_000

# Beyond these a factor is no ordinary float32 number: its product with another may be, so it is taken in float64.
_LEAST, _BIGGEST = 2.0**-100, 2.0**100


def refusals(request: AttentionRequest) -> list[Reason]:
    """Give what this path leaves to others: nothing."""
    del request
    return []


def plan(request: AttentionRequest) -> Run:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""

    def run(query: Tensor, key: Tensor, value: Tensor, operands: Operands) -> AttentionOutput:
        batch, heads, rows, _ = query.shape
        step = max(1, _MOST // max(1, heads * rows * key.shape[2]))
        if request.grad or step >= batch:
            return _attend(query, key, value, operands, request)
        parts = [slice(start, start + step) for start in range(0, batch, step)]
        return _joined([_attend(query[b], key[b], value[b], _cut(operands, b), request) for b in parts])

    return run


def _attend(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
) -> AttentionOutput:
    dtype = getattr(torch, request.accumulate)
    batch, heads, rows, head_dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    folded = batch, kv_heads, request.group * rows
    shown = visible(request, operands, query.device)

    living = _living(query, shown).to(dtype).reshape(*folded, head_dim)
    products = living @ _living_keys(key, shown, request.group).to(dtype).mT
    scores = _finished(products.reshape(batch, heads, rows, keys), operands, request, shown)
    sinks = None if operands.sinks is None else operands.sinks.to(dtype)[:, None, None]
    weights, top, total = _softmax(scores, sinks)
    output = weights.reshape(*folded, keys) @ _living_keys(value, shown, request.group).to(dtype)

    empty = total == 0
    total = torch.where(empty, 1, total)
    lse = torch.where(empty, -math.inf, top + total.log())[..., 0] if request.lse else None
    output = output.reshape(batch, heads, rows, value_dim) / total
    return AttentionOutput(_living(output, shown).to(query.dtype), lse)


def visible(request: AttentionRequest, operands: Operands, device: torch.device) -> Tensor | None:
    """Give the keys that each query sees, broadcastable to ``[B, H, T, S]``; ``None`` where it is all of them."""
    terms = [*_positional(request, operands, device), *operands.dense]
    terms += [_same_document(ids_q, ids_k) for ids_q, ids_k in operands.documents]
    if operands.bias is not None:
        terms.append(operands.bias != -math.inf)
    shown: Tensor | None = None
    for term in terms:
        shown = term if shown is None else shown & term
    return None if shown is None else shown[(None,) * (4 - shown.ndim)]


def _positional(request: AttentionRequest, operands: Operands, device: torch.device) -> list[Tensor]:
    rows, keys = positions(operands, device)
    first, last = request.mask.first_key(rows, torch), request.mask.last_key(rows, torch)
    terms = [] if first is None else [keys >= first]
    terms += [] if last is None else [keys <= last]
    if operands.kv_lengths is not None:
        terms.append(torch.arange(operands.key_length, device=device) < _column(operands.kv_lengths, device))
    if operands.query_lengths is not None:
        index = torch.arange(operands.query_length, device=device)[:, None]
        terms.append(index < _column(operands.query_lengths, device))
    return terms


def positions(operands: Operands, device: torch.device) -> tuple[Tensor, Tensor]:
    """Give positions of queries and keys, ``[T, 1]`` and ``[1, S]``, or ``[B, 1, T, 1]`` and ``[B, 1, 1, S]``."""
    key_start = 0 if operands.key_offset is None else _column(operands.key_offset, device)
    if operands.query_offset is not None:
        query_start = _column(operands.query_offset, device)
    else:
        keys = operands.key_length if operands.kv_lengths is None else _column(operands.kv_lengths, device)
        rows = operands.query_length if operands.query_lengths is None else _column(operands.query_lengths, device)
        query_start = key_start + keys - rows
    rows = torch.arange(operands.query_length, device=device)[:, None] + query_start
    return rows, torch.arange(operands.key_length, device=device)[None, :] + key_start


def _column(numbers: Any, device: torch.device) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.int64, device=device)[:, None, None, None]


def _same_document(ids_q: Tensor, ids_k: Tensor) -> Tensor:
    same = ids_q[..., :, None] == ids_k[..., None, :]
    return same[:, None] if same.ndim == 3 else same


def _living(rows: Tensor, shown: Tensor | None) -> Tensor:
    """Give queries or outputs ``[B, H, T, ...]`` with zeros, and no gradient, in rows that see no key."""
    return rows if shown is None else torch.where(shown.any(dim=-1, keepdim=True), rows, 0)


def _living_keys(array: Tensor, shown: Tensor | None, group: int) -> Tensor:
    """Give keys or values ``[B, K, S, ...]`` with zeros where no query of the group looks."""
    if shown is None:
        return array
    read = shown.any(dim=2)
    if read.shape[1] > 1:
        read = read.unflatten(1, (-1, group)).any(dim=2)
    return torch.where(read[..., None], array, 0)


def _finished(products: Tensor, operands: Operands, request: AttentionRequest, shown: Tensor | None) -> Tensor:
    """Turn products ``[B, H, T, S]`` into scores, those of hidden keys ``-inf``."""
    scores = _times(products, request.scale)
    if request.softcap is not None:
        scores = _capped(scores if shown is None else torch.where(shown, scores, 0), request.softcap)
    if operands.bias is not None:
        scores = scores + operands.bias.to(scores.dtype)
    if operands.alibi is not None:
        rows, keys = positions(operands, scores.device)
        slopes = operands.alibi.to(scores.dtype)[:, :, None, None]
        scores = scores - slopes * (rows - keys).abs().to(scores.dtype)
    return scores if shown is None else torch.where(shown, scores, -math.inf)


def _times(scores: Tensor, scale: float) -> Tensor:
    if _LEAST < abs(scale) < _BIGGEST:
        return scores * scale
    return (scores.double() * scale).to(scores.dtype)


def _capped(scores: Tensor, softcap: float) -> Tensor:
    if _LEAST < softcap < _BIGGEST:
        return softcap * torch.tanh(scores / softcap)
    return (softcap * torch.tanh(scores.double() / softcap)).to(scores.dtype)


def _softmax(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Give weights ``exp(score - top)``, the largest score (0 in a row without keys) and the sum of the weights.

    The sinks take part in both. ``top`` cancels in whatever is made of the three, so no gradient goes through it.
    """
    if scores.shape[-1]:
        top = scores.detach().amax(dim=-1, keepdim=True)
    else:
        top = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    if sinks is not None:
        top = torch.maximum(top, sinks.detach())
    top = torch.where(top == -math.inf, 0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    return weights, top, total if sinks is None else total + torch.exp(sinks - top)


def _cut(operands: Operands, b: slice) -> Operands:
    """Cut the operands down to some sequences; axes of length 1 broadcast and stay."""

    def cut(array: Any) -> Any:
        return array if array is None or array.shape[0] == 1 else array[b]

    return operands._replace(
        bias=cut(operands.bias),
        alibi=cut(operands.alibi),
        query_lengths=cut(operands.query_lengths),
        kv_lengths=cut(operands.kv_lengths),
        query_offset=cut(operands.query_offset),
        key_offset=cut(operands.key_offset),
        documents=tuple((q if q.ndim == 1 else q[b], k if k.ndim == 1 else k[b]) for q, k in operands.documents),
        dense=tuple(map(cut, operands.dense)),
    )


def _joined(results: list[AttentionOutput]) -> AttentionOutput:
    lses = [result.lse for result in results if result.lse is not None]
    return AttentionOutput(torch.cat([result.output for result in results]), torch.cat(lses) if lses else None)
