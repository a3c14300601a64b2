"""The decode path: few queries over many keys, each key read once, where it lies.

The query heads of a group are folded into the rows of their key/value head, so that keys and values are never repeated.
Keys that every query sees go to torch's fused kernel; what it does not know, and the few keys that only some queries
see, is written out, block by block and in the type of the accumulation. Keys that no query sees are not read.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``G = H / K`` the group, ``T`` query length, ``S`` key
length, ``D`` query/key head size, ``E`` value head size; ``b``, ``k``, ``t`` and ``s`` are a group's share, ``n = G t``
folded rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from attnkit import AttentionOutput, AttentionRequest, MaskStructure, Operands, Reason
from attnkit_torch.sources import Keys, Source, Tensors, Unit, source_of
from attnkit_torch.tiling.blocks import of_empty_rows, terms_of
from attnkit_torch.tiling.running import Part, finish, join, side_by_side, softmax
from attnkit_torch.tiling.scores import Terms
from attnkit_torch.tiling.tiles import Group, Sizes, groups
from attnkit_torch.whole import fused

Run = Callable[[Tensor, Keys, Keys, Operands], AttentionOutput]

MOST_ROWS = 256

# Elements of keys that are converted at a time, so that they are still in the cache when they are multiplied; and
# scores that are held at a time.
_CONVERTED, _MOST_SCORES = 2**19, 2**22

# Results of the kernel that are held at a time.
_MOST_PARTS = 32


class Ours(NamedTuple):
    """What is decided before a call.

    Its accumulation, its scale, whether the kernel takes part, whether the mask has arrays, and whether keys have to be
    converted to be multiplied here.
    """

    dtype: torch.dtype
    scale: float
    fused: bool
    arrays: bool
    converts: bool


class Reach(NamedTuple):
    """The keys that some queries see by position, and the *core* of them that every one of these sees."""

    first: int
    last: int
    core_first: int
    core_last: int

    def around(self) -> list[tuple[int, int]]:
        """Give the ranges of keys beside the core."""
        return [(self.first, self.core_first), (self.core_last, self.last)]


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
    ours = Ours(
        dtype=getattr(torch, request.accumulate),
        scale=request.scale,
        fused=_is_fused(request),
        arrays=bool(mask.documents or mask.dense),
        converts=request.kv_dtype != request.accumulate,
    )
    seen = _keys_seen_by_all(request) if ours.fused else 0
    scale, group, wants_lse = request.scale, request.group, request.lse

    def run(query: Tensor, key: Keys, value: Keys, operands: Operands) -> AttentionOutput:
        if 0 < operands.key_length <= seen and isinstance(key, Tensor) and query.numel():
            if group == 1:
                output, lse = fused.forward(query, key, value, scale, False)
                return AttentionOutput(output, lse if wants_lse else None)
            output, lse = fused.forward(query.unflatten(1, (-1, group)).flatten(2, 3), key, value, scale, False)
            shape = query.shape[:3]
            return AttentionOutput(output.reshape(*shape, -1), lse.reshape(shape) if wants_lse else None)
        return _attend(query, source_of(key, value), operands, request, ours)

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


def _keys_seen_by_all(request: AttentionRequest) -> float:
    """Give up to how many keys of a sequence every query sees all of them, and there is nothing else."""
    if request.query_lengths or request.kv_lengths or request.query_offset or request.sinks:
        return 0
    mask = request.mask
    if request.query_length == 1 and mask == MaskStructure(mask.causal, mask.left, mask.right):
        return math.inf if mask.left is None else mask.left  # the query stands on the last key
    return math.inf if mask == MaskStructure() else 0


def _attend(
    query: Tensor, source: Source, operands: Operands, request: AttentionRequest, ours: Ours
) -> AttentionOutput:
    sinks = None if operands.sinks is None else operands.sinks.to(ours.dtype)
    results = []
    for group in groups(operands, request, Sizes(request.query_length, 1)):
        part = _solve(query, source, group, operands, request, ours)
        if part is not None:
            own = None if sinks is None else sinks[group.heads].reshape(*part.top.shape[1:3], 1, 1)
            results.append((group, *finish(part, own)))
    if len(results) == 1 and results[0][0].is_whole(request):
        output, lse = (result.flatten(1, 2) for result in results[0][1:])
        return AttentionOutput(output.to(query.dtype), lse if request.lse else None)
    output, lse = of_empty_rows(query, request.value_dim, sinks, ours.dtype)
    for group, own_output, own_lse in results:
        group.of_queries(output)[...], group.of_queries(lse)[...] = own_output, own_lse
    return AttentionOutput(output, lse if request.lse else None)


def _solve(
    query: Tensor, source: Source, group: Group, operands: Operands, request: AttentionRequest, ours: Ours
) -> Part | None:
    """Compute a group; ``None`` where nobody sees a key."""
    rows = group.of_queries(query)
    reach = Reach(*group.schedule.keys_of(0, rows.shape[3]))
    if not rows.numel() or reach.first >= reach.last:
        return None
    units = list(source.units(group))
    found, rest = None, [(reach.first, reach.last)]
    if ours.fused and reach.core_first < reach.core_last:
        found, rest = _fused(rows, units, reach, ours), reach.around()
    if any(first < last for first, last in rest):
        terms = partial(terms_of, operands=operands, request=request)
        found = join(found, _written_out(rows, units, reach, rest, terms, ours))
    return found


def _fused(query: Tensor, units: list[Unit], reach: Reach, ours: Ours) -> Part:
    """Let the kernel compute ``[b, k, G, t, D]`` with the keys that every query sees."""
    rows, shape = query.flatten(2, 3), query.shape[2:4]
    found = []
    for unit in units:
        pieces = unit.reader.whole(reach.core_first, reach.core_last)
        found.append(_over_pieces(rows if len(units) == 1 else rows[unit.place], pieces, ours))
    output, lse = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    return Part(output.unflatten(2, shape), lse.unflatten(2, shape)[..., None], None)


def _over_pieces(query: Tensor, pieces: Iterable[Tensors], ours: Ours) -> tuple[Tensor, Tensor]:
    """Give output ``[b, k, n, E]`` and LSE ``[b, k, n]`` over keys that come in pieces."""
    found: list[tuple[Tensor, Tensor]] = []
    for key, value in pieces:
        if len(found) == _MOST_PARTS:
            found = [_merged(found)]
        output, lse = fused.forward(query, key, value, ours.scale, False)
        found.append((output.to(ours.dtype), lse))
        del key, value  # what the next piece is decoded into may be the same memory
    return found[0] if len(found) == 1 else _merged(found)


def _merged(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge outputs ``[b, k, n, E]`` and LSEs ``[b, k, n]`` of several sets of keys."""
    lses = torch.stack([lse for _, lse in parts])
    shares = lses.softmax(0)  # they add up to 1, which exponentials of ``part - lse`` do not
    outputs = torch.stack([output for output, _ in parts])
    return outputs.mul_(shares[..., None]).sum(0), lses.logsumexp(0)


def _written_out(
    query: Tensor,
    units: list[Unit],
    reach: Reach,
    ranges: list[tuple[int, int]],
    terms_of_group: Callable[[Group], Terms],
    ours: Ours,
) -> Part:
    """Compute ``[b, k, G, t, D]`` with ranges of keys, block by block."""
    wide, rows, parts = query.to(ours.dtype), slice(0, query.shape[3]), []
    for unit in units:
        found, own, terms = None, wide[unit.place], terms_of_group(unit.group)
        for keys in _blocks(ranges, min(unit.reader.most, _block_length(own, ours))):
            key, value = unit.reader.block(keys)
            scores = terms.products(own, key.to(ours.dtype))
            inside = reach.core_first <= keys.start and keys.stop <= reach.core_last
            terms.complete(scores, rows, keys, masked=ours.arrays or not inside)
            found = join(found, softmax(scores, value.to(ours.dtype)))
        parts.append(cast(Part, found))
    return side_by_side(parts)


def _blocks(ranges: list[tuple[int, int]], step: int) -> Iterator[slice]:
    """Cut ranges of keys into blocks."""
    for first, last in ranges:
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))


def _block_length(query: Tensor, ours: Ours) -> int:
    """Give how many keys are multiplied with ``[b, k, G, t, D]`` at a time."""
    batch, heads, group, rows, size = map(int, query.shape)
    scores = _MOST_SCORES // (batch * heads * group * rows)
    return max(64, min(scores, _CONVERTED // (batch * heads * size)) if ours.converts else scores)
