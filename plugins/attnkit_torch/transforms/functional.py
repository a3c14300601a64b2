"""The operators where ``torch.func`` transforms a function, which does not see the gradients that they register."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from attnkit import UnsupportedError
from attnkit_torch.transforms.library import (
    attention_operator,
    backward_operator,
    differentiate,
    refuse_second,
    remember,
)


class TransformedAttention(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
    """``attnkit::attention`` with its arguments and results."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        """Run the operator."""
        return attention_operator(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the arguments."""
        remember(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
        """Run the operator of the gradients."""
        grads = differentiate(ctx, grad_output, grad_lse, TransformedGradients.apply)
        return tuple(None if isinstance(grad, list) else grad for grad in grads)

    @staticmethod
    def jvp(_ctx: Any, *_tangents: Any) -> NoReturn:
        """Refuse forward mode."""
        raise UnsupportedError("attention has no forward-mode derivatives (jvp, jacfwd, hessian); use vjp or jacrev")


class TransformedGradients(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
    """``attnkit::attention_backward`` with its arguments and results."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        """Run the operator."""
        return backward_operator(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing."""

    @staticmethod
    def backward(_ctx: Any, *_grads: Tensor) -> NoReturn:
        """Refuse to differentiate gradients."""
        refuse_second()
