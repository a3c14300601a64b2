"""Gradients of the tiled path: output and log-sum-exp are kept, and all tiles are computed once more on the way back.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnkit import AttentionRequest, Operands
from attnkit_torch.tiling import blocks
from attnkit_torch.tiling.backward import Call, differentiate


class Attend(torch.autograd.Function):  # type: ignore[misc]  # torch is optional, and so untyped
    """``blocks.attend`` with gradients of the first order for query, key, value, bias, slopes and sinks.

    ``operands`` come without bias, slopes and sinks.
    """

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        alibi: Tensor | None,
        sinks: Tensor | None,
        operands: Operands,
        request: AttentionRequest,
    ) -> tuple[Tensor, Tensor]:
        """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]``."""
        return blocks.attend(query, key, value, operands._replace(bias=bias, alibi=alibi, sinks=sinks), request)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the backward pass needs, all of it linear in T and S."""
        *tensors, ctx.operands, ctx.request = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Give the gradients of the inputs."""
        query, key, value, bias, alibi, sinks, output, lse = ctx.saved_tensors
        operands = ctx.operands._replace(bias=bias, alibi=alibi, sinks=sinks)
        with torch.no_grad():
            back = torch.zeros_like(output) if grad_output is None else grad_output
            call = Call(query, key, value, operands, ctx.request, output, lse, back, grad_lse)
            _, _, _, bias_wanted, slopes_wanted, *_ = ctx.needs_input_grad
            found = differentiate(call, bias=bias_wanted, slopes=slopes_wanted)
        if not torch.is_grad_enabled():
            return *found, None, None
        inputs = [tensor for tensor in (query, key, value, bias, alibi, sinks) if tensor is not None]
        return *(None if grad is None else FirstOrder.apply(grad, *inputs) for grad in found), None, None


class FirstOrder(torch.autograd.Function):  # type: ignore[misc]  # torch is optional, and so untyped
    """Gives back a gradient, which depends on the inputs, and refuses to be differentiated.

    Torch's ``once_differentiable`` refuses only where what came back had a graph, and gives a constant elsewhere.
    """

    @staticmethod
    def forward(grad: Tensor, *inputs: Tensor) -> Tensor:
        """Give the gradient."""
        del inputs  # they tie it into the graph
        return grad.view_as(grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Refuse."""
        del ctx, grads
        raise RuntimeError("torch:tiled has gradients of the first order only; torch:dense has those of any order")
