"""Storage of caches: scattered tokens written and copied in one call of NumPy.

Axes: ``B`` sequences, ``K`` key/value heads, ``N`` slots, ``T`` new tokens, ``n`` tokens, ``F`` features of a plane.
"""

from __future__ import annotations

import numpy as np

from attnkit_numpy.layout import Array

# A loop over runs of consecutive slots costs 2 us a run and copies a little faster than one call with all the slots,
# which costs 6 us.
_FEW, _LONG = 2, 64


def is_scattered(slots: Array) -> bool:
    """Tell whether slots ``[B, T]`` are many runs of consecutive ones, and short runs."""
    runs = len(slots) + (int(np.count_nonzero(np.diff(slots) != 1)) if slots.shape[1] > 1 else 0)
    return runs > _FEW and slots.size < _LONG * runs


def scatter(plane: Array, slots: Array, tokens: Array) -> None:
    """Store tokens ``[B, K, T, F]`` in slots ``[B, T]`` of ``[K, N, F]``; negative slots are skipped."""
    kept, tokens = slots >= 0, tokens.swapaxes(0, 1)
    if kept.all():
        plane[:, slots] = tokens
    else:
        plane[:, slots[kept]] = tokens[:, kept]


def gather(plane: Array, slots: Array) -> Array:
    """Copy slots ``[B, n]`` of ``[K, N, F]`` out: ``[B, K, n, F]``, zeros for negative slots."""
    (heads, size, features), empty = plane.shape, slots < 0
    if not size:
        return np.zeros((len(slots), heads, slots.shape[1], features), plane.dtype)
    found: Array = plane.take(slots, axis=1, mode="clip")
    if empty.any():
        found[:, empty] = 0
    return found.swapaxes(0, 1)
