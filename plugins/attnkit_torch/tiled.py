"""The tiled path: takes everything that the contract has, in memory that grows with T and S, not with their product.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attnkit import AttentionOutput, AttentionRequest, Operands, Reason
from attnkit_torch.tiling import blocks
from attnkit_torch.tiling.gradients import Attend


def refusals(request: AttentionRequest) -> list[Reason]:
    """Give the reasons why a request is left to other paths: there is none."""
    del request
    return []


def plan(request: AttentionRequest) -> Callable[[Tensor, Tensor, Tensor, Operands], AttentionOutput]:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    return partial(_attend, request=request)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
) -> AttentionOutput:
    terms = operands.bias, operands.alibi, operands.sinks
    tensors = query, key, value, *(term for term in terms if term is not None)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        rest = operands._replace(bias=None, alibi=None, sinks=None)
        output, lse = Attend.apply(query, key, value, *terms, rest, request)
    else:
        output, lse = blocks.attend(query, key, value, operands, request)
    return AttentionOutput(output, lse if request.lse else None)
