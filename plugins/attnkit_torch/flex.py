"""The path of FlexAttention: a kernel that ``torch.compile`` writes for the score terms of the call.

One kernel serves every mask, length and offset (``flexing/mods.py``). Its first call compiles, for ten seconds and
more on a CPU; others follow for other score terms, element types, scales, head counts and head sizes, and on a CPU for
other shapes. A call with few scores is not worth that: the same two functions are evaluated there as they stand, all
scores at once. Neither gives gradients.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from attnkit import AttentionOutput, AttentionRequest, BackendUnavailableError, Operands, Reason
from attnkit_torch.flexing.block_mask import block_mask
from attnkit_torch.flexing.mods import Mods, mods_for

Run = Callable[[Tensor, Tensor, Tensor, Operands], AttentionOutput]

# Scores, B * H * T * S, up to which nothing is compiled.
FEW = 2**20

# Beyond these a factor is no ordinary float32 number, and the kernel multiplies in float32.
_LEAST, _BIGGEST = 2.0**-100, 2.0**100

_ELSEWHERE = "fine on torch:tiled"


def refusals(request: AttentionRequest) -> list[Reason]:
    """Give what this path leaves to others: gradients, numbers far from 1, and what its kernels cannot do."""
    reasons = [Reason("path", "grad", "absent", "given", _ELSEWHERE)] if request.grad else []
    for name, number in (("scale", request.scale), ("softcap", request.softcap)):
        if number and not _LEAST < abs(number) < _BIGGEST:
            reasons.append(Reason("path", name, "between 2**-100 and 2**100", str(number), _ELSEWHERE))
    return reasons if _is_small(request) else reasons + _refused_compiled(request)


def _refused_compiled(request: AttentionRequest) -> list[Reason]:
    reasons = []
    if request.accumulate == "float64" or request.kv_dtype != request.dtype:
        types = f"{request.dtype}, {request.kv_dtype}"
        reasons.append(Reason("path", "dtype", "one of 16 or 32 bits for all of them", types, _ELSEWHERE))
    if request.device == "cpu":
        given = [name for name in ("lse", "sinks") if getattr(request, name)]
        reasons += [Reason("path", name, "absent on a CPU", "given", _ELSEWHERE) for name in given]
        if not _has_compiler():
            hint = "install g++ or clang++, or name one in CXX; fine on torch:tiled"
            reasons.append(Reason("path", "device", "one with a C++ compiler, for torch.compile", "cpu", hint))
    return reasons


def details(request: AttentionRequest) -> dict[str, Any]:
    """Say whether a request is compiled."""
    return {"compiled": not _is_small(request)}


def plan(request: AttentionRequest) -> Run:
    """Give the function that computes ``[B, H, T, E]`` and LSE ``[B, H, T]``; see ``attnkit.Backend.attention``."""
    attend = _attend if _is_small(request) else _attend_compiled

    def run(query: Tensor, key: Tensor, value: Tensor, operands: Operands) -> AttentionOutput:
        if not (query.numel() and key.numel() and value.numel()):
            result = _nothing(query, value, request)
        else:
            result = attend(query, key, _living(value, operands), operands, request)
        return result if operands.sinks is None else _with_sinks(result, operands.sinks, request)

    return run


def _is_small(request: AttentionRequest) -> bool:
    return request.batch * request.num_heads * request.query_length * request.key_length <= FEW


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++", "cl"))


def _living(value: Tensor, operands: Operands) -> Tensor:
    """Give the values with zeros in padding: a kernel multiplies it with weights of 0."""
    if operands.kv_lengths is None:
        return value
    lengths = torch.as_tensor(operands.kv_lengths, device=value.device)[:, None]
    living = torch.arange(value.shape[2], device=value.device) < lengths
    return torch.where(living[:, None, :, None], value, 0)


def _attend_compiled(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
) -> AttentionOutput:
    mods = mods_for(request, operands, query.device)
    blocks = block_mask(mods, query.shape[2], key.shape[2]) if mods.masked else None
    wanted = request.lse or request.sinks
    try:
        kernel = _kernel(_variant(request, mods, key.shape[2]), request.device != "cpu", wanted)
        return AttentionOutput(*kernel(query, key, value, mods.score_mod(), blocks, request.scale))
    except torch._dynamo.exc.TorchDynamoException as error:
        raise BackendUnavailableError(
            f"torch.compile cannot make a kernel for torch:flex here: {error}; use torch:tiled"
        ) from error


def _variant(request: AttentionRequest, mods: Mods, keys: int) -> tuple[Any, ...]:
    """Give what a kernel is made for."""
    sizes = request.num_heads, request.num_kv_heads, request.head_dim, request.value_dim
    added = [None if array is None else tuple(size > 1 for size in array.shape) for array in (mods.dense, mods.bias)]
    flags = mods.masked, mods.first is not None, len(mods.documents), request.softcap is not None, request.alibi
    # torch 2.13 writes C++ that does not compile where a mask reads arrays of sizes unknown to it.
    shape = (request.batch, request.query_length, keys) if request.device == "cpu" else ()
    return request.device, request.dtype, request.scale, *sizes, *added, *flags, *shape


@lru_cache(maxsize=64)
def _kernel(variant: tuple[Any, ...], dynamic: bool, lse: bool) -> Callable[..., Any]:
    """Give FlexAttention to be compiled for one variant; torch keeps few kernels of one function, hence the copy."""
    code = _flex.__code__.replace(co_name=f"_flex_{abs(hash(variant))}")
    own = FunctionType(code, globals(), argdefs=(lse,))
    compiled: Callable[..., Any] = torch.compile(own, dynamic=None if dynamic else False, fullgraph=True)
    return compiled


def _flex(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, blocks: Any, scale: float, lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    grouped = query.shape[1] != key.shape[1]
    arguments = {"score_mod": score_mod, "block_mask": blocks, "scale": scale, "enable_gqa": grouped}
    if not lse:
        return flex.flex_attention(query, key, value, **arguments), None
    if hasattr(flex, "AuxRequest"):  # torch 2.9 and newer
        output, found = flex.flex_attention(query, key, value, **arguments, return_aux=flex.AuxRequest(lse=True))
        return output, found.lse
    output, found = flex.flex_attention(query, key, value, **arguments, return_lse=True)
    return output, found


def _attend(
    query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
) -> AttentionOutput:
    """Evaluate the two functions for all scores at once."""
    mods, dtype = mods_for(request, operands, query.device), getattr(torch, request.accumulate)
    key, value = (array.to(dtype).repeat_interleave(request.group, dim=1) for array in (key, value))
    scores = (query.to(dtype) @ key.mT) * request.scale
    axes = (torch.arange(size, device=query.device) for size in scores.shape)
    b, h, i, j = (axis.view([-1 if at == own else 1 for at in range(4)]) for own, axis in enumerate(axes))
    modify = mods.score_mod()
    scores = scores if modify is None else modify(scores, b, h, i, j)
    scores = torch.where(mods.mask_mod()(b, h, i, j), scores, -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    weights = (scores - torch.where(top == -math.inf, 0, top)).exp()
    total = weights.sum(dim=-1, keepdim=True)
    output = weights @ value / torch.where(total == 0, 1, total)
    return AttentionOutput(output.to(query.dtype), (top + total.log())[..., 0])


def _with_sinks(result: AttentionOutput, sinks: Tensor, request: AttentionRequest) -> AttentionOutput:
    """Let sinks take part in the normaliser."""
    output, lse = result
    sinks = sinks.to(getattr(torch, request.accumulate))[:, None]
    total = torch.logaddexp(lse, sinks)
    share = torch.where(total == -math.inf, 0, (lse - total).exp())
    output = (output * share[..., None]).to(output.dtype)
    return AttentionOutput(output, total if request.lse else None)


def _nothing(query: Tensor, value: Tensor, request: AttentionRequest) -> AttentionOutput:
    """Give the result of a call without queries or without keys."""
    shape = query.shape[:3]
    lse = query.new_full(shape, -math.inf, dtype=getattr(torch, request.accumulate))
    return AttentionOutput(query.new_zeros((*shape, value.shape[3])), lse)
