"""The decode path: few queries over many keys, each key read once.

The query heads of a group are folded into the rows of their key/value head, so that keys and values are never repeated.
Keys that every query sees go to torch's fused kernel; what it does not know, and the few keys that only some queries
see, is written out, block by block and in the type of the accumulation. Keys that no query sees are not read.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size; ``b``, ``k``, ``t`` and ``s`` are a group's share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attnkit import AttentionOutput, AttentionRequest, MaskStructure, Operands, Reason
from attnkit_torch.tiling.blocks import of_empty_rows, terms_of
from attnkit_torch.tiling.running import Part, finish, join, softmax
from attnkit_torch.tiling.scores import Terms
from attnkit_torch.tiling.tiles import Group, groups
from attnkit_torch.whole import fused

Run = Callable[[Tensor, Tensor, Tensor, Operands], AttentionOutput]

MOST_ROWS = 256


class Ours(NamedTuple):
    """What is decided before a call: its accumulation, whether the kernel takes part, whether the mask has arrays."""

    dtype: torch.dtype
    fused: bool
    arrays: bool


# Elements of keys that are converted at a time, so that they are still in the cache when they are multiplied; and
# scores that are held at a time.
_CONVERTED, _MOST_SCORES = 2**19, 2**22


def refusals(request: AttentionRequest) -> list[Reason]:
    """Give what this path leaves to others: many rows, and gradients."""
    reasons = []
    rows = request.group * request.query_length
    if rows > MOST_ROWS:
        most = f"at most {MOST_ROWS} for group * query_length"
        reasons.append(Reason("path", "query_length", most, str(rows), "fine on torch:tiled"))
    if request.grad:
        reasons.append(Reason("path", "grad", "absent", "wanted", "fine on torch:tiled"))
    return reasons


def plan(request: AttentionRequest) -> Run:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    mask = request.mask
    ours = Ours(getattr(torch, request.accumulate), _is_fused(request), bool(mask.documents or mask.dense))
    everything = ours.fused and _sees_everything(request)
    scale, group, wants_lse = request.scale, request.group, request.lse

    def run(query: Tensor, key: Tensor, value: Tensor, operands: Operands) -> AttentionOutput:
        if everything and query.numel() and operands.key_length:
            if group == 1:
                output, lse = fused.forward(query, key, value, scale, False)
                return AttentionOutput(output, lse if wants_lse else None)
            output, lse = fused.forward(query.unflatten(1, (-1, group)).flatten(2, 3), key, value, scale, False)
            shape = query.shape[:3]
            return AttentionOutput(output.reshape(*shape, -1), lse.reshape(shape) if wants_lse else None)
        return _attend(query, key, value, operands, request, ours)

    return run


def _is_fused(request: AttentionRequest) -> bool:
    """Tell whether the fused kernel can compute what every query sees, and with the accuracy that is wanted."""
    plain = request.softcap is None and request.bias is None and not request.alibi
    mask = request.mask
    ordinary = 2.0**-100 < abs(request.scale) < 2.0**100
    exact = not request.lse or request.accumulate == request.dtype
    exact = exact and request.head_dim >= fused.MERGED_HEAD_DIM
    own = request.device == "cpu" and request.dtype == request.kv_dtype
    return plain and ordinary and exact and own and not (mask.documents or mask.dense)


def _sees_everything(request: AttentionRequest) -> bool:
    """Tell whether every query sees every key of every sequence, and there is nothing else."""
    positions = request.query_lengths or request.kv_lengths or request.query_offset or request.key_offset
    last = request.query_length == 1 and request.mask == MaskStructure(causal=True)
    return (last or request.mask == MaskStructure()) and not (positions or request.sinks)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest, ours: Ours
) -> AttentionOutput:
    dtype = ours.dtype
    sinks = None if operands.sinks is None else operands.sinks.to(dtype)
    output, lse = of_empty_rows(query, value, sinks, dtype)
    for group in groups(operands, request):
        arrays = group.of_queries(query), group.of_keys(key), group.of_keys(value)
        found = _solve(*arrays, group, terms_of(group, operands, request), ours)
        if found is not None:
            sink = None if sinks is None else sinks[group.heads].reshape(*arrays[0].shape[1:3], 1, 1)
            group.of_queries(output)[...], group.of_queries(lse)[...] = finish(found, sink)
    return AttentionOutput(output, lse if request.lse else None)


def _solve(query: Tensor, key: Tensor, value: Tensor, group: Group, terms: Terms, ours: Ours) -> Part | None:
    """Compute ``[b, k, G, t, D]`` with ``[b, k, s, D]`` and ``[b, k, s, E]``; ``None`` where nobody sees a key."""
    rows = query.shape[3]
    if not query.numel():
        return None
    first, last, *core = group.schedule.keys_of(0, rows)
    found, spans = None, [(first, last)]
    if ours.fused and core[0] < core[1]:
        found = _fused(query, key[:, :, slice(*core)], value[:, :, slice(*core)], terms.scale, ours.dtype)
        spans = [(first, core[0]), (core[1], last)]
    wide = query.to(ours.dtype)
    for keys in _blocks(spans, _block_length(key, query.shape[2] * rows, ours.dtype)):
        scores = terms.products(wide, key[:, :, keys].to(ours.dtype))
        inside = core[0] <= keys.start and keys.stop <= core[1]
        terms.complete(scores, slice(0, rows), keys, masked=ours.arrays or not inside)
        found = join(found, softmax(scores, value[:, :, keys].to(ours.dtype)))
    return found


def _fused(query: Tensor, key: Tensor, value: Tensor, scale: float, dtype: torch.dtype) -> Part:
    """Let the kernel compute keys that every query sees."""
    output, lse = fused.forward(query.flatten(2, 3), key, value, scale, False)
    shape = query.shape[2:4]
    output, lse = output.unflatten(2, shape).to(dtype), lse.unflatten(2, shape)[..., None]
    return Part(output, lse, None)


def _blocks(spans: list[tuple[int, int]], step: int) -> Iterator[slice]:
    """Cut ranges of keys into blocks."""
    for first, last in spans:
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))


def _block_length(key: Tensor, rows: int, dtype: torch.dtype) -> int:
    """Give how many keys of ``[b, k, s, D]`` are multiplied with ``rows`` folded queries at a time."""
    heads = int(key.shape[0] * key.shape[1])
    scores = _MOST_SCORES // (heads * rows)
    return max(64, scores if key.dtype == dtype else min(scores, _CONVERTED // (heads * int(key.shape[3]))))
