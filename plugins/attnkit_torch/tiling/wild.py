"""Numbers so large that a hidden score may overflow, and what to do about them.

Torch's fused kernel hides a key by adding ``-inf`` to its score, which makes a NaN of an infinite one. So wild numbers
are kept from it: it gets zeros in their place, which is right, to the bit, for all rows that see none of them. The
other rows are left to plain operations. That way it is never for a hidden key to decide how a row is computed.

Axes: ``b`` sequences, ``k`` key/value heads, ``G`` query heads of one key/value head, ``t`` queries, ``s`` keys, ``D``
head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnkit_torch.tiling.scores import Terms, cut_tile
from attnkit_torch.tiling.tiles import Group

# Numbers below the root of this have products of which many can be added up in float32.
_PRODUCT = 2.0**110
# A larger bias may overflow with a score added to it.
_BIAS = 2.0**126


class Wild(NamedTuple):
    """The keys ``[b, k, s]`` that have wild numbers, and the rows ``[b, k, G, t]`` that do, or see such a key."""

    rows: Tensor
    keys: Tensor


def find(group: Group, terms: Terms, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Wild | None:
    """Look for wild numbers in arrays ``[b, k, G, t, D]`` and ``[b, k, s, D]``; ``None`` where all is well."""
    most = math.sqrt(_PRODUCT / max(1.0, abs(terms.scale)) / max(array.shape[-1] for array in (*queries, *keys)))
    bias = None if terms.bias is None or not terms.bias.numel() else terms.bias
    if all(_peak(array) < most for array in (*queries, *keys)) and (bias is None or float(bias.amax()) < _BIAS):
        return None
    rows, wild_keys = (torch.stack([~_small(array, most) for array in arrays]).any(0) for arrays in (queries, keys))
    for block in group.blocks():
        for tile in block.tiles:
            found = rows[..., block.rows]
            found |= _sees(terms, block.rows, slice(tile.start, tile.stop), wild_keys)
    return Wild(rows, wild_keys)


def calm(array: Tensor, wild: Tensor) -> Tensor:
    """Give an array with zeros in its wild rows."""
    return array.masked_fill(wild[..., None], 0)


def _peak(array: Tensor) -> float:
    """Give the largest magnitude, NaN if there is any; this takes a fifteenth of the time of an infinity norm."""
    return max(map(abs, map(float, array.aminmax()))) if array.numel() else 0.0


def _small(array: Tensor, most: float) -> Tensor:
    return (array.abs() < most).all(-1)


def _sees(terms: Terms, rows: slice, keys: slice, wild: Tensor) -> Tensor:
    """Tell which rows of a tile see a wild key or bias, broadcastable to ``[b, k, G, n]``."""
    seen = wild[..., None, None, keys]
    if terms.bias is not None:
        bias = cut_tile(terms.bias, rows, keys)
        seen = (seen & (bias != -math.inf)) | ~(bias < _BIAS)
    return (seen & ~terms.hidden(rows, keys, wild.device)).any(-1)
