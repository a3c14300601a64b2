"""The backward pass of the tiled path: the forward pass kept its output and LSE, the tiles are computed once more.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G`` query heads of one key/value head, ``T`` queries,
``S`` keys, ``D`` query/key head size, ``E`` value head size; ``b``, ``k``, ``t`` and ``s`` are a group's share,
``n`` queries of a block.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnkit import AttentionRequest, Operands
from attnkit_torch.tiling import kernel, wild
from attnkit_torch.tiling.blocks import terms_of
from attnkit_torch.tiling.shares import FusedShare, Rows, TiledShare, Totals
from attnkit_torch.tiling.tiles import Group, groups


class Call(NamedTuple):
    """A call, its result, output ``[B, H, T, E]`` and LSE ``[B, H, T]``, and the gradients that come back for that."""

    query: Tensor
    key: Tensor
    value: Tensor
    operands: Operands
    request: AttentionRequest
    output: Tensor
    lse: Tensor
    grad_output: Tensor
    grad_lse: Tensor | None


class Gradients(NamedTuple):
    """Gradients in the making; all but the query's, whose rows are written once, in the type of the accumulation.

    ``gain``, ``[B, H, T]``, is what every score of a row gains by its weight: ``dL - do·o``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    slopes: Tensor | None
    gain: Tensor


def differentiate(call: Call, *, bias: bool, slopes: bool) -> tuple[Tensor | None, ...]:
    """Give the gradients of query, key, value, bias, slopes and sinks, each like what it is the gradient of.

    ``bias`` and ``slopes`` say whether theirs are wanted.
    """
    grads = _zeros(call, bias, slopes)
    for group in groups(call.operands, call.request):
        _add_group(group, call, grads)
    operands = call.operands
    return (
        grads.query,
        grads.key.to(call.key.dtype),
        grads.value.to(call.value.dtype),
        _like(grads.bias, operands.bias),
        _like(grads.slopes, operands.alibi),
        _like(_of_sinks(operands.sinks, grads.gain, call.lse), operands.sinks),
    )


def _zeros(call: Call, bias: bool, slopes: bool) -> Gradients:
    dtype, operands = call.lse.dtype, call.operands
    return Gradients(
        query=torch.zeros_like(call.query),
        key=torch.zeros_like(call.key, dtype=dtype),
        value=torch.zeros_like(call.value, dtype=dtype),
        bias=torch.zeros_like(operands.bias, dtype=dtype) if bias else None,
        slopes=torch.zeros_like(operands.alibi, dtype=dtype) if slopes else None,
        gain=_gain(call),
    )


def _gain(call: Call) -> Tensor:
    """Give ``dL - do·o``, where anything times an output of 0, that of a row without keys, is 0."""
    products = call.grad_output.to(call.lse.dtype) * call.output
    total = products.masked_fill_(call.output == 0, 0).sum(-1).neg_()
    return total if call.grad_lse is None else total.add_(call.grad_lse)


def _add_group(group: Group, call: Call, grads: Gradients) -> None:
    """Choose how a group is differentiated, and add its gradients."""
    terms = terms_of(group, call.operands, call.request)
    key, value, grad_key, grad_value = map(group.of_keys, (call.key, call.value, grads.key, grads.value))
    bias = None if grads.bias is None else group.of_scores(grads.bias)
    slopes = None if grads.slopes is None else group.of_scores(grads.slopes[..., None, None])
    totals = Totals(grad_key, grad_value, bias, slopes)
    tiled = TiledShare(group, terms, key, value, totals)
    arrays = (call.query, call.output, call.grad_output, call.lse, grads.gain, grads.query)
    rows = Rows(*map(group.of_queries, arrays))
    # The kernel knows no gradients of its mask, and makes the gain of the output alone.
    if bias is not None or slopes is not None or call.grad_lse is not None or not kernel.takes(call.request):
        _run(tiled, rows)
        return
    fused = kernel.fused(group, terms, call.request)
    found = wild.find(group, terms, (rows.query, rows.grad_output), (key, value))
    if found is None:
        _run(FusedShare(fused, key, value, totals), rows)
        return
    _run(FusedShare(fused, wild.calm(key, found.keys), wild.calm(value, found.keys), totals), rows.without(found.rows))
    if bool(found.rows.any()):
        _run(tiled, rows.without(~found.rows))


def _run(share: TiledShare | FusedShare, rows: Rows) -> None:
    for block in share.group.blocks():
        share.add(block, rows.cut(block.rows))


def _of_sinks(sinks: Tensor | None, gain: Tensor, lse: Tensor) -> Tensor | None:
    """Give the gradient of the sinks ``[H]``, keys whose value is 0."""
    if sinks is None:
        return None
    weights = (sinks.to(lse.dtype)[:, None] - lse.masked_fill(lse == -math.inf, 0)).exp_()
    return (weights * gain).sum((0, 2))


def _like(grad: Tensor | None, array: Tensor | None) -> Tensor | None:
    return None if grad is None or array is None else grad.to(array.dtype)
