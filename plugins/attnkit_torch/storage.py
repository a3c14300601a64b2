"""Storage of caches: tokens written into planes, and copied out of them.

Axes: ``B`` sequences, ``K`` key/value heads, ``N`` slots, ``T`` new tokens, ``n`` tokens, ``F`` features of a plane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit import runs

IntArray = np.ndarray[Any, np.dtype[np.int64]]

# A loop over runs of consecutive slots beats one call with all the slots where the runs are few or long.
_FEW, _LONG = 3, 8


def write(plane: Tensor, slots: IntArray, tokens: Tensor) -> None:
    """Store tokens ``[B, K, T, F]`` in slots ``[B, T]`` of ``[K, N, F]``; negative slots are skipped."""
    if _are_scattered(slots):
        _scatter(plane, slots.ravel(), tokens.transpose(0, 1).flatten(1, 2).to(plane.dtype))
        return
    for sequence, start, stop, slot in runs(slots):
        plane[:, slot : slot + stop - start] = tokens[sequence, :, start:stop]


def gather(plane: Tensor, slots: IntArray) -> Tensor:
    """Copy slots ``[B, n]`` of ``[K, N, F]`` out: ``[B, K, n, F]``, zeros for negative slots."""
    empty = np.flatnonzero(slots < 0)
    if len(empty) == slots.size:
        return plane.new_zeros((slots.shape[0], plane.shape[0], slots.shape[1], plane.shape[2]))
    found = plane.index_select(1, _index(np.maximum(slots, 0).ravel(), plane))
    if len(empty):
        found.index_fill_(1, _index(empty, plane), 0)
    return found.unflatten(1, slots.shape).transpose(0, 1)


def _are_scattered(slots: IntArray) -> bool:
    """Tell whether slots ``[B, T]`` are many runs of consecutive ones, and short runs."""
    if slots.size <= _FEW:
        return False
    count = len(slots) + int(np.count_nonzero(slots[:, 1:] - slots[:, :-1] != 1))
    return count > _FEW and slots.size <= _LONG * count


def _scatter(plane: Tensor, slots: IntArray, tokens: Tensor) -> None:
    """Store tokens ``[K, n, F]`` in slots ``[n]``."""
    kept = np.flatnonzero(slots >= 0)
    if len(kept) < len(slots):
        slots, tokens = slots[kept], tokens[:, _index(kept, plane)]
    plane.index_copy_(1, _index(slots, plane), tokens)


def _index(numbers: IntArray, plane: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(plane.device)
