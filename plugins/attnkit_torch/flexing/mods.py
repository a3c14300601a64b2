"""A call as FlexAttention wants it: what is done to a score, and which keys are seen, as functions of indices.

Every positional kind of mask, lengths and offsets leave each query one interval of keys, which is all that is kept of
them: one function serves every mask, and a kernel compiled for one fits the others.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length. Indices: ``b`` sequence, ``h`` query head,
``i`` query, ``j`` key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from attnkit import AttentionRequest, Operands

Index = Any
ScoreMod = Callable[[Any, Index, Index, Index, Index], Any]
MaskMod = Callable[[Index, Index, Index, Index], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Mods:
    """The data of a call that its two functions read.

    Attributes
    ----------
    first, last
        First and last key that a query sees by position, ``[B, T]`` or ``[1, T]``; ``None`` where that is all of them.
    documents
        ``(ids_q, ids_k)`` pairs, ``[T]`` or ``[B, T]`` and ``[S]`` or ``[B, S]``.
    dense, bias
        4-D, broadcastable to ``[B, H, T, S]``; ``None`` without one.
    slopes
        ``[1, H]`` or ``[B, H]``; ``None`` without ALiBi.
    shift
        By how much query 0 stands after key 0, ``[B]`` or ``[1]``.
    softcap
        One number; ``None`` for no cap.
    """

    first: Tensor | None
    last: Tensor | None
    documents: tuple[tuple[Tensor, Tensor], ...]
    dense: Tensor | None
    bias: Tensor | None
    slopes: Tensor | None
    shift: Tensor
    softcap: Tensor | None

    @property
    def masked(self) -> bool:
        """Whether any key may be hidden."""
        return self.first is not None or self.by_arrays

    @property
    def by_arrays(self) -> bool:
        """Whether anything but positions hides keys."""
        return bool(self.documents) or self.dense is not None or self.bias is not None

    def score_mod(self) -> ScoreMod | None:
        """Give what turns a scaled product into a score, or ``None`` for nothing."""
        softcap, bias, slopes, shift = self.softcap, self.bias, self.slopes, self.shift
        if softcap is None and bias is None and slopes is None:
            return None

        def modify(score: Any, b: Index, h: Index, i: Index, j: Index) -> Any:
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            if bias is not None:
                score = score + _at(bias, b, h, i, j)
            if slopes is not None:
                score = score - _at(slopes, b, h) * (_at(shift, b) + i - j).abs()
            return score

        return modify

    def mask_mod(self) -> MaskMod:
        """Give what tells whether a key is visible."""
        first, last, documents, dense, bias = self.first, self.last, self.documents, self.dense, self.bias

        def see(b: Index, h: Index, i: Index, j: Index) -> Any:
            shown = j >= 0
            if first is not None and last is not None:
                shown = shown & (j >= _at(first, b, i)) & (j <= _at(last, b, i))
            for ids_q, ids_k in documents:
                shown = shown & (_at(ids_q, b, i) == _at(ids_k, b, j))
            if dense is not None:
                shown = shown & _at(dense, b, h, i, j)
            return shown if bias is None else shown & (_at(bias, b, h, i, j) != -math.inf)

        return see


def mods_for(request: AttentionRequest, operands: Operands, device: torch.device) -> Mods:
    """Gather what a call on ``device`` needs; bias and slopes in the accumulation type."""
    dtype = getattr(torch, request.accumulate)
    shift = _shift(operands, device)
    first, last = _interval(request, operands, shift)
    return Mods(
        first,
        last,
        tuple((_batched(ids_q), _batched(ids_k)) for ids_q, ids_k in operands.documents),
        reduce(torch.logical_and, operands.dense) if operands.dense else None,
        None if operands.bias is None else operands.bias.detach().to(dtype),
        None if operands.alibi is None else operands.alibi.detach().to(dtype),
        shift,
        None if request.softcap is None else torch.tensor(request.softcap, dtype=dtype, device=device),
    )


def _shift(operands: Operands, device: torch.device) -> Tensor:
    key_start = _column(operands.key_offset, 0, device)
    if operands.query_offset is not None:
        return _column(operands.query_offset, 0, device) - key_start
    keys = _column(operands.kv_lengths, operands.key_length, device)
    return keys - _column(operands.query_lengths, operands.query_length, device)


def _interval(
    request: AttentionRequest, operands: Operands, shift: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Give the interval of keys that each query sees by position, empty in rows of padding."""
    if not (request.mask.positional or request.kv_lengths or request.query_lengths):
        return None, None
    device = shift.device
    rows = torch.arange(operands.query_length, device=device)
    key_start = _column(operands.key_offset, 0, device)[:, None]
    positions = shift[:, None] + rows + key_start
    first, last = request.mask.first_key(positions, torch), request.mask.last_key(positions, torch)
    end = _column(operands.kv_lengths, operands.key_length, device)[:, None] - 1 + positions * 0
    first = positions * 0 if first is None else (first - key_start).clamp(0, operands.key_length)
    last = end if last is None else torch.minimum(last - key_start, end).clamp(min=-1)
    padding = rows >= _column(operands.query_lengths, operands.query_length, device)[:, None]
    return first.to(torch.int32), torch.where(padding, -1, last).to(torch.int32)


def _column(numbers: Any, default: int, device: torch.device) -> Tensor:
    return torch.as_tensor([default] if numbers is None else numbers, dtype=torch.int64, device=device)


def _batched(ids: Tensor) -> Tensor:
    return ids if ids.ndim == 2 else ids[None]


def _at(array: Tensor, *indices: Index) -> Any:
    """Index an array, whose axes of length 1 broadcast."""
    return array[tuple(index if size > 1 else index * 0 for index, size in zip(indices, array.shape, strict=True))]
