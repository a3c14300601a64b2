"""Gradients that refuse to be differentiated again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def first_order(grads: Sequence[Tensor | None], inputs: Sequence[Tensor | None], path: str) -> list[Tensor | None]:
    """Give gradients that depend on the inputs of ``path``, for whoever differentiates them, with an error for him.

    Torch's ``once_differentiable`` refuses only where what came back had a graph, and gives a constant elsewhere.
    """
    if not torch.is_grad_enabled():
        return list(grads)
    given = [tensor for tensor in inputs if tensor is not None]
    return [None if grad is None else _FirstOrder.apply(path, grad, *given) for grad in grads]


class _FirstOrder(torch.autograd.Function):  # type: ignore[misc]  # torch is optional, and so untyped
    """Gives back a gradient, and ties it to what it depends on."""

    @staticmethod
    def forward(path: str, grad: Tensor, *inputs: Tensor) -> Tensor:
        """Give the gradient."""
        del path, inputs
        return grad.view_as(grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the name."""
        del output
        ctx.path = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Refuse."""
        del grads
        raise RuntimeError(f"{ctx.path} has gradients of the first order only; torch:dense has those of any order")
