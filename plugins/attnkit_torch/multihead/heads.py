"""Heads of the module: cut from projections, put together again, and turned by their positions.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` head size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnkit import CacheLayer, RopeConfig, ShapeError, apply_rope, rope_tables

Heads = tuple[Tensor, Tensor, Tensor]


def check_shapes(arrays: Heads, sizes: tuple[int, int, int], batch_first: bool) -> None:
    """Raise ``ShapeError`` unless query, key and value fit each other and have ``sizes`` features."""
    query, key, value = arrays
    fits = (
        query.dim() in (2, 3)
        and query.dim() == key.dim() == value.dim()
        and all(array.shape[-1] == size for array, size in zip(arrays, sizes, strict=True))
        and key.shape[:-1] == value.shape[:-1]
        and (query.dim() == 2 or query.shape[not batch_first] == key.shape[not batch_first])
    )
    if not fits:
        axes = ("B, T", "B, S") if batch_first else ("T, B", "S, B")
        raise ShapeError(
            f"query, key, value must be [{axes[0]}, M], [{axes[1]}, kdim], [{axes[1]}, vdim], or all without B, with "
            f"M, kdim, vdim = {list(sizes)}, got " + ", ".join(str(list(array.shape)) for array in arrays)
        )


def split_heads(x: Tensor, head_dim: int, batch_first: bool) -> Tensor:
    """Give ``[B, T, H D]``, ``[T, B, H D]`` or ``[T, H D]`` as ``[B, H, T, D]``."""
    heads = x.unflatten(-1, (x.shape[-1] // head_dim, head_dim))
    if heads.dim() == 3:
        return heads.transpose(0, 1)[None]
    return heads.transpose(1, 2) if batch_first else heads.permute(1, 2, 0, 3)


def join_heads(heads: Tensor, batched: bool, batch_first: bool) -> Tensor:
    """Undo ``split_heads``."""
    if not batched:
        return heads[0].transpose(0, 1).flatten(1)
    return (heads.transpose(1, 2) if batch_first else heads.permute(2, 0, 1, 3)).flatten(2)


def rotate(rope: RopeConfig, heads: Heads, is_causal: bool, cache: CacheLayer | None) -> Heads:
    """Turn queries ``[B, H, T, D]`` and keys ``[B, K, S, D]`` by the positions that the mask gives them."""
    query, key, value = heads
    queries, keys, size = query.shape[2], key.shape[2], key.shape[3]
    start = np.zeros((1, 1), np.int64) if cache is None else cache.next_position[:, None]
    first = start if is_causal else start + (keys - queries)
    turned = apply_rope(rope, query, rope_tables(rope, size, first + np.arange(queries), query))
    return turned, apply_rope(rope, key, rope_tables(rope, size, start + np.arange(keys), key)), value


def with_extra(heads: Tensor, extra: Tensor) -> Tensor:
    """Append a learned key or value ``[1, 1, K D]`` to heads ``[B, K, S, D]``."""
    batch, count, _, size = heads.shape
    return torch.cat([heads, extra.reshape(1, count, 1, size).to(heads.dtype).expand(batch, -1, -1, -1)], dim=2)
