"""The masks of ``torch.nn.MultiheadAttention`` in the contract's terms.

There a boolean mask hides where it is True, and a mask of floats is added to the scores. Here what is visible is one
boolean tensor, True = keep, and what is added is the bias.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnkit import DTypeError, ShapeError

KeepAndBias = tuple[Tensor | None, Tensor | None]


def keep_and_bias(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, sizes: tuple[int, int, int, int], batched: bool
) -> KeepAndBias:
    """Translate the masks of a call.

    Parameters
    ----------
    attn_mask
        ``[T, S]`` or ``[B H, T, S]``.
    key_padding_mask
        ``[B, S]``, or ``[S]`` for a call without a batch.
    sizes
        ``B``, ``H``, ``T`` and ``S``.
    batched
        Whether the call has a batch.

    Returns
    -------
    keep, bias
        4-D, each broadcastable to ``[B, H, T, S]``, or ``None``.

    Raises
    ------
    ShapeError, DTypeError
        If a mask does not fit.
    """
    keep: Tensor | None = None
    bias: Tensor | None = None
    for name, mask in (
        ("attn_mask", _of_scores(attn_mask, sizes)),
        ("key_padding_mask", _of_keys(key_padding_mask, sizes, batched)),
    ):
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            keep = ~mask if keep is None else keep & ~mask
        elif mask.is_floating_point():
            bias = mask if bias is None else bias + mask
        else:
            raise DTypeError(f"{name} must be boolean (True = hidden) or floats to add, got {mask.dtype}")
    return keep, bias


def _of_scores(mask: Tensor | None, sizes: tuple[int, int, int, int]) -> Tensor | None:
    if mask is None:
        return None
    batch, heads, queries, keys = sizes
    if tuple(mask.shape) == (queries, keys):
        return mask[None, None]
    if tuple(mask.shape) == (batch * heads, queries, keys):
        return mask.unflatten(0, (batch, heads))
    raise ShapeError(
        f"attn_mask must be [T, S] = [{queries}, {keys}] or [B H, T, S] = [{batch * heads}, {queries}, {keys}], "
        f"got {list(mask.shape)}"
    )


def _of_keys(mask: Tensor | None, sizes: tuple[int, int, int, int], batched: bool) -> Tensor | None:
    if mask is None:
        return None
    shape = (sizes[0], sizes[3]) if batched else (sizes[3],)
    if tuple(mask.shape) != shape:
        axes = "[B, S]" if batched else "[S]"
        raise ShapeError(f"key_padding_mask must be {axes} = {list(shape)}, got {list(mask.shape)}")
    return mask[:, None, None] if batched else mask[None, None, None]
