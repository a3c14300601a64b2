"""Which blocks of queries x keys a call has to visit, as FlexAttention's ``BlockMask``, from intervals and ids.

Nothing of the size ``T x S`` is formed, and nothing is read back from a device.

Axes: ``B`` batch, ``T`` query length, ``S`` key length, ``Q`` and ``C`` blocks of queries and of keys.
"""

from __future__ import annotations

from inspect import signature

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attnkit_torch.flexing.mods import Mods

SIZE = 128
"""Queries and keys in a block."""

_SIZED = "seq_lengths" in signature(BlockMask.from_kv_blocks).parameters


def block_mask(mods: Mods, rows: int, keys: int) -> BlockMask:
    """Give the blocks that ``rows`` queries and ``keys`` keys have to visit, and those that need no mask."""
    visited, whole = _visited(mods, rows, keys)
    sized = {"seq_lengths": (rows, keys)} if _SIZED else {}
    return BlockMask.from_kv_blocks(
        *_listed(visited & ~whole), *_listed(visited & whole), BLOCK_SIZE=SIZE, mask_mod=mods.mask_mod(), **sized
    )


def _visited(mods: Mods, rows: int, keys: int) -> tuple[Tensor, Tensor]:
    """Tell for each block whether any query sees a key of it, and whether every one sees all, ``[B, 1, Q, C]``."""
    start = torch.arange(0, keys, SIZE, device=mods.shift.device)
    stop = (start + SIZE - 1).clamp(max=keys - 1)
    if mods.first is None or mods.last is None:
        visited = torch.ones(1, -(-rows // SIZE), len(start), dtype=torch.bool, device=start.device)
        whole = visited
    else:
        empty = mods.last < mods.first
        low, high = mods.first.where(~empty, keys), mods.last.where(~empty, -1)
        visited = (_least(low, keys)[..., None] <= stop) & (_most(high, -1)[..., None] >= start)
        whole = (_most(mods.first, -1)[..., None] <= start) & (_least(mods.last, keys)[..., None] >= stop)
    for ids_q, ids_k in mods.documents:
        (low_q, high_q), (low_k, high_k) = _range(ids_q), _range(ids_k)
        visited = visited & (low_q[..., None] <= high_k[:, None]) & (low_k[:, None] <= high_q[..., None])
    return visited[:, None], (torch.zeros_like(whole) if mods.by_arrays else whole)[:, None]


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Give how many blocks are set in each row, and which, the first ones in order."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.to(torch.int32).contiguous()


def _range(ids: Tensor) -> tuple[Tensor, Tensor]:
    limits = torch.iinfo(ids.dtype)
    return _least(ids, limits.max), _most(ids, limits.min)


def _least(numbers: Tensor, neutral: int) -> Tensor:
    return _blocks(numbers, neutral).amin(dim=-1)


def _most(numbers: Tensor, neutral: int) -> Tensor:
    return _blocks(numbers, neutral).amax(dim=-1)


def _blocks(numbers: Tensor, neutral: int) -> Tensor:
    """Cut ``[B, T]`` into ``[B, Q, SIZE]``; what is missing in the last block is ``neutral``."""
    missing = -numbers.shape[-1] % SIZE
    return torch.nn.functional.pad(numbers, (0, missing), value=neutral).unflatten(-1, (-1, SIZE))
