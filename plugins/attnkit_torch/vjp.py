"""Gradients for tools that do not know tensors: ``Backend.vjp`` by torch's automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def vjp(
    function: Callable[..., Sequence[Tensor]], arrays: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Evaluate ``function(*arrays)`` and differentiate it; results and gradients come without a graph.

    The strides of ``arrays`` and ``cotangents`` stay as they are.
    """
    leaves = [array.detach().requires_grad_() for array in arrays]
    with torch.enable_grad():
        results = tuple(function(*leaves))
    tracked = [pair for pair in zip(results, cotangents, strict=True) if pair[0].requires_grad]
    if tracked:
        outputs, weights = zip(*tracked, strict=True)
        gradients = torch.autograd.grad(outputs, leaves, weights, materialize_grads=True)
    else:  # of an empty axis, whose result depends on nothing
        gradients = tuple(torch.zeros_like(leaf) for leaf in leaves)
    return tuple(result.detach() for result in results), tuple(gradients)
