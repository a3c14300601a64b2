"""A whole call out of the parts that the fused CPU kernel solves, and its gradients.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size, ``b`` sequences and ``n`` queries of a work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnkit_torch.first_order import first_order
from attnkit_torch.whole import fused
from attnkit_torch.whole.parts import Part, Work

Definition = Callable[[Tensor, Tensor, Tensor], Tensor]


def solve(query: Tensor, key: Tensor, value: Tensor, works: tuple[Work, ...], scale: float) -> tuple[Tensor, Tensor]:
    """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]``; zeros and ``-inf`` for queries in no work."""
    if len(works) == 1 and works[0].is_whole(query):
        return _solve_work(query, key, value, works[0].parts, scale)
    output = query.new_zeros((*query.shape[:3], value.shape[3]))
    lse = query.new_full(query.shape[:3], -math.inf, dtype=torch.promote_types(query.dtype, torch.float32))
    for sequences, rows, parts in works:
        found = _solve_work(query[sequences, :, rows], key[sequences], value[sequences], parts, scale)
        output[sequences, :, rows], lse[sequences, :, rows] = found
    return output, lse


def _solve_work(
    query: Tensor, key: Tensor, value: Tensor, parts: tuple[Part, ...], scale: float
) -> tuple[Tensor, Tensor]:
    """Give output ``[b, H, n, E]`` and LSE ``[b, H, n]``."""
    found = [fused.forward(query, key[:, :, keys], value[:, :, keys], scale, causal) for keys, causal in parts]
    return found[0] if len(found) == 1 else _merged(*found)


def _merged(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(one[1], other[1])
    apart = one[1] - other[1]  # shares from it add up to 1, which exponentials of ``part - lse`` do not
    output, more = one[0] * apart.sigmoid()[..., None], other[0] * (-apart).sigmoid()[..., None]
    return output.add_(more).to(one[0].dtype), lse


def gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    works: tuple[Work, ...],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of query, key and value from that of the output; zeros where there is no work."""
    found = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for sequences, rows, parts in works:
        ours, own, outputs, lses = (array[sequences, :, rows] for array in (grad, query, output, lse))
        of_query = torch.zeros((), dtype=lse.dtype)
        for keys, causal in parts:
            theirs = key[sequences, :, keys], value[sequences, :, keys]
            shares = fused.backward(ours, own, *theirs, outputs, lses, scale, causal)
            of_query = of_query + shares[0].to(lse.dtype)
            found[1][sequences, :, keys], found[2][sequences, :, keys] = shares[1:]
        found[0][sequences, :, rows] = of_query
    return found


class Attend(torch.autograd.Function):  # type: ignore[misc]  # torch is optional, and so untyped
    """``solve`` with gradients of the first order with respect to query, key and value.

    The kernel multiplies the derivatives by hidden scores by 0. Where a hidden value is so large that such a derivative
    overflowed, the gradients are those of the definition, an equivalent call in differentiable operations.
    """

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, works: tuple[Work, ...], scale: float, definition: Definition
    ) -> tuple[Tensor, Tensor]:
        """Give output and LSE."""
        del definition
        return solve(query, key, value, works, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the gradients need."""
        *arrays, ctx.works, ctx.scale, ctx.definition = inputs
        ctx.save_for_backward(*arrays, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        """Give the gradients."""
        query, key, value, output, lse = ctx.saved_tensors
        with torch.no_grad():
            found = gradients(grad, query, key, value, output, lse, ctx.works, ctx.scale)
            hides = any(part.causal for work in ctx.works for part in work.parts)
            if hides and not _is_finite(found):
                found = _gradients_of(ctx.definition, (query, key, value), grad)
        return (*first_order(found, (query, key, value), "torch:sdpa"), None, None, None)


def _is_finite(arrays: tuple[Tensor, ...]) -> bool:
    """Tell whether there is neither NaN nor infinity; by sums in float32 or wider, which may say so too early."""
    sums = [array.sum(dtype=torch.promote_types(array.dtype, torch.float32)) for array in arrays]
    return math.isfinite(sum(sums))


def _gradients_of(
    definition: Definition, arrays: tuple[Tensor, Tensor, Tensor], grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = leaves = [array.detach().requires_grad_() for array in arrays]
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        found = torch.autograd.grad(definition(query, key, value), leaves, grad)
    return found[0], found[1], found[2]
