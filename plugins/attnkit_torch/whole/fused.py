"""Torch's fused CPU kernel: output with log-sum-exp, and gradients.

The kernel is called by its own name: there is no other that torch could choose in its place, and none that keeps 16-bit
scores. Its causal mask is aligned to the top left.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

KERNEL = torch._scaled_dot_product_flash_attention_for_cpu  # a binding of torch's own, quicker than torch.ops
KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

# To merge results by their log-sum-exp costs about as much accuracy as four more products in each score do: nothing
# much where a score is a sum of many, and too much where it is a sum of a few.
MERGED_HEAD_DIM = 8
BLOCK_ROWS = 32  # the smallest block of queries that the kernel works on


def forward(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]``; no axis may be empty."""
    output: Tensor
    lse: Tensor
    if _is_plain(query, key, value):
        output, lse = KERNEL(query, key, value, 0.0, causal, scale=scale)
        return output, lse
    size, group = max(query.shape[3], value.shape[3]), query.shape[1] // key.shape[1]
    arrays = _queries(query, group, size), _keys(key, group, size), _keys(value, group, size)
    output, lse = KERNEL(*arrays, 0.0, causal, scale=scale)
    shape = query.shape[:3]
    if group > 1:
        output, lse = output.reshape(*shape, size), lse.reshape(shape)
    return output if size == value.shape[3] else output[..., : value.shape[3]], lse


def _is_plain(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether the kernel takes the arrays as they are: small calls feel every step in between."""
    _, heads, _, size = query.shape
    alike = bool(key.shape[1] == heads and value.shape[3] == size)
    return alike and has_rows(query, size) and has_rows(key, size) and has_rows(value, size)


def has_rows(array: Tensor, size: int) -> bool:
    """Tell whether rows are contiguous and apart; the kernel reads others, such as one row many times, wrongly."""
    strides = array.stride()
    return bool(strides[-1] == 1 and strides[-2] >= size)


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of query, key and value from that of the output.

    Where the keys are only some of those behind ``output`` and ``lse``, the gradients are their share of it. Sums of
    several gradients are to be rounded once, so all are in float32 or wider in a group, for each head of which the
    kernel gives a gradient, and in more rows than one of its blocks, between which it stores what it has.
    """
    if query.shape[1] > key.shape[1] or query.shape[2] > BLOCK_ROWS:
        wide = torch.promote_types(query.dtype, torch.float32)
        grad, query, key, value, output = (array.to(wide) for array in (grad, query, key, value, output))
    size, group = max(query.shape[3], value.shape[3]), query.shape[1] // key.shape[1]
    arrays = _queries(query, group, size), _keys(key, group, size), _keys(value, group, size)
    ends = _queries(output, group, size), lse.reshape(arrays[0].shape[:3])
    found = KERNEL_BACKWARD(_queries(grad, group, size), *arrays, *ends, 0.0, causal, scale=scale)
    grad_query = found[0].reshape(*query.shape[:3], size)[..., : query.shape[3]]
    return grad_query, _summed(found[1], group, key), _summed(found[2], group, value)


def _queries(array: Tensor, group: int, size: int) -> Tensor:
    """Give ``[B, H, T, size]``, or ``[B * K, G, T, size]`` for a group."""
    array = with_rows(array, size)
    return array if group == 1 else array.reshape(-1, group, *array.shape[2:])


def _keys(array: Tensor, group: int, size: int) -> Tensor:
    """Give ``[B, K, S, size]``, or ``[B * K, G, S, size]`` with the heads of a group at one address."""
    array = with_rows(array, size)
    return array if group == 1 else array.reshape(-1, 1, *array.shape[2:]).expand(-1, group, -1, -1)


def with_rows(array: Tensor, size: int) -> Tensor:
    """Give an array whose last axis is ``size`` long, and whose rows are contiguous and apart.

    Zeros add nothing to a product, and columns of zeros among the values are cut off again.
    """
    if array.shape[-1] < size:
        return F.pad(array, (0, size - array.shape[-1]))
    return array if has_rows(array, size) else array.clone(memory_format=torch.contiguous_format)


def _summed(grad: Tensor, group: int, array: Tensor) -> Tensor:
    """Sum the gradient over the group and cut it to the shape of the array."""
    grad = grad if group == 1 else grad.sum(dim=1).reshape(*array.shape[:3], -1)
    return grad[..., : array.shape[3]]
