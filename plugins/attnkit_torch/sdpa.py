"""The sdpa path: torch's fused kernels, for calls without a mask and for causal ones.

A causal call of any alignment is cut into the past, which every query sees, and a square, which the kernels know; the
two are merged by their log-sum-exp. Lengths and offsets are slices: what lies beyond is never handed to a kernel.

Dense masks and biases are left to other paths. The kernels add ``-inf`` to the score of a hidden key, and where that
score overflowed, the sum is NaN.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from attnkit import AttentionOutput, AttentionRequest, MaskStructure, Operands, Reason
from attnkit_torch import dense
from attnkit_torch.whole import fused
from attnkit_torch.whole.assembled import Attend, solve
from attnkit_torch.whole.parts import Part, works

Run = Callable[[Tensor, Tensor, Tensor, Operands], AttentionOutput]

# Beyond these a scale is no ordinary float32 number; and a causal kernel multiplies -inf by it.
_LEAST, _MOST = 2.0**-100, 2.0**100


def refusals(request: AttentionRequest) -> list[Reason]:
    """Give what this path leaves to others."""
    return [Reason("path", *reason, "fine on torch:tiled") for reason in _refusals(request)]


def _refusals(request: AttentionRequest) -> Iterator[tuple[str, str, str]]:
    if request.mask not in (MaskStructure(), MaskStructure(causal=True)):
        yield "mask", "none or causal", str(request.mask)
    for name in ("softcap", "bias", "alibi", "sinks"):
        if getattr(request, name):
            yield name, "absent", "given"
    if request.kv_dtype != request.dtype:
        yield "kv_dtype", f"the query's ({request.dtype})", request.kv_dtype
    if not _LEAST < request.scale < _MOST:
        yield "scale", "> 0 and an ordinary float32 number", str(request.scale)
    if request.mask.causal and request.head_dim < fused.MERGED_HEAD_DIM:
        yield "head_dim", f">= {fused.MERGED_HEAD_DIM} under a causal mask", str(request.head_dim)
    # Of 16-bit numbers the kernel takes a fast exponential, which is right to about 16 bits.
    if request.lse and (request.grad or request.device != "cpu" or request.accumulate != request.dtype):
        yield "lse", "absent, or of float32 or float64 on the CPU without gradients", "asked for"


def plan(request: AttentionRequest) -> Run:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    if request.device != "cpu":
        return partial(_on_accelerator, request=request)
    if request.grad:
        return partial(_differentiable, request=request)
    positions = request.query_lengths or request.kv_lengths or request.query_offset or request.key_offset
    causal, scale = request.mask.causal, request.scale

    def run(query: Tensor, key: Tensor, value: Tensor, operands: Operands) -> AttentionOutput:
        rows, keys = operands.query_length, operands.key_length
        if positions or not (query.numel() and keys) or (causal and rows != keys):
            found = solve(query, key, value, works(request, operands, query.shape[0]), scale)
        else:
            found = fused.forward(query, key, value, scale, causal)
        return AttentionOutput(*found) if request.lse else AttentionOutput(found[0])

    return run


def _differentiable(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
) -> AttentionOutput:
    definition = dense.plan(request)

    def defined(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return definition(query, key, value, operands).output

    output, _ = Attend.apply(query, key, value, works(request, operands, query.shape[0]), request.scale, defined)
    return AttentionOutput(output)


def _on_accelerator(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
) -> AttentionOutput:
    """Compute a call with kernels that only torch itself can choose; gradients are torch's own."""
    work = works(request, operands, query.shape[0])
    if len(work) == 1 and work[0].is_whole(query):
        return AttentionOutput(_attend(query, key, value, work[0].parts, request))
    output = query.new_zeros((*query.shape[:3], value.shape[3]))
    for sequences, rows, parts in work:
        arrays = query[sequences, :, rows], key[sequences], value[sequences]
        output[sequences, :, rows] = _attend(*arrays, parts, request)
    return AttentionOutput(output)


def _attend(query: Tensor, key: Tensor, value: Tensor, parts: tuple[Part, ...], request: AttentionRequest) -> Tensor:
    past, seen = parts[-1].keys.start, parts[-1].keys.stop
    mask = None
    if len(parts) > 1:
        mask = torch.ones(query.shape[2], seen, dtype=torch.bool, device=query.device).tril(past)
    return F.scaled_dot_product_attention(
        *(query, key[:, :, :seen], value[:, :, :seen], mask),
        is_causal=parts[-1].causal and mask is None,
        scale=request.scale,
        enable_gqa=request.group > 1,
    )
