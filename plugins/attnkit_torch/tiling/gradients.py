"""Gradients of the tiled path: output and log-sum-exp are kept, and all tiles are computed once more on the way back.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``E`` value head size.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor

from attnkit import AttentionRequest, Operands
from attnkit_torch.first_order import first_order
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
        *tensors, operands, ctx.request = inputs
        ctx.operands = operands._replace(documents=(), dense=())
        # Saved as tensors are, so that torch notices if somebody writes into a mask in between.
        ctx.save_for_backward(*tensors, *output, *operands.dense, *chain(*operands.documents))
        ctx.dense = len(operands.dense)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Give the gradients of the inputs."""
        query, key, value, bias, alibi, sinks, output, lse, *masks = ctx.saved_tensors
        dense, ids = masks[: ctx.dense], masks[ctx.dense :]
        documents = tuple(zip(ids[::2], ids[1::2], strict=True))
        operands = ctx.operands._replace(bias=bias, alibi=alibi, sinks=sinks, documents=documents, dense=tuple(dense))
        with torch.no_grad():
            back = torch.zeros_like(output) if grad_output is None else grad_output
            call = Call(query, key, value, operands, ctx.request, output, lse, back, grad_lse)
            _, _, _, bias_wanted, slopes_wanted, *_ = ctx.needs_input_grad
            found = differentiate(call, bias=bias_wanted, slopes=slopes_wanted)
        return *first_order(found, (query, key, value, bias, alibi, sinks), "torch:tiled"), None, None
