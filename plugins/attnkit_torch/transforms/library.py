"""``attnkit::attention``: attention as one operator, which compilers and transforms of functions take as a whole.

The operator runs ``attnkit.attention`` when it is run, so that choice of backend, context and environment work as they
do in eager mode. Whatever the path, its results have one memory layout, the one that torch's fused kernels write:
output and gradients of query, key and value are stored ``[B, T, H, E]`` and seen as ``[B, H, T, E]``.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnkit import AttentionOutput, UnsupportedError, attention, attention_with_lse
from attnkit_torch.transforms.batching import fold, loop
from attnkit_torch.transforms.flat import Flat, unflatten

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, SymInt[] positional, Tensor[] documents, Tensor[] dense, float? scale, "
    "float? softcap, Tensor? bias, Tensor? alibi, Tensor? sinks, Tensor? query_lengths, Tensor? kv_lengths, "
    "Tensor? query_offset, Tensor? key_offset, str backend, bool lse"
)
_DIFFERENTIABLE = ("query", "key", "value", "bias", "alibi", "sinks")
_OPTIONAL = ("bias", "alibi", "sinks", "query_lengths", "kv_lengths", "query_offset", "key_offset")


def _attend(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Give output ``[B, H, T, E]`` and LSE ``[B, H, T]``, or an empty tensor where it is not asked for."""
    *flat, lse = options
    with torch.no_grad():
        result = _run(query, key, value, Flat(*flat), lse)
    found = _nothing(query, _accumulate(query)) if result.lse is None else result.lse.contiguous()
    return _laid_out(result.output), found


def _fake_attend(query: Tensor, _key: Tensor, value: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    batch, heads, rows, _ = query.shape
    dtype = _accumulate(query)
    lse = query.new_empty((batch, heads, rows), dtype=dtype) if options[-1] else _nothing(query, dtype)
    return _empty(query, (batch, heads, rows, value.shape[3])), lse


def _differentiate(grad_output: Tensor, grad_lse: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Give the gradients of query, key, value, bias, slopes and sinks; an empty tensor for one that is not wanted.

    The call is computed once more, by a backend that gives gradients: it alone knows what they need.
    """
    query, key, value, *options, lse, wanted = arguments
    flat = Flat(*options)
    with _recording():
        leaves = [
            None if array is None else array.detach().requires_grad_(want)
            for array, want in zip((query, key, value, flat.bias, flat.alibi, flat.sinks), wanted, strict=True)
        ]
        query, key, value, bias, alibi, sinks = leaves
        result = _run(query, key, value, flat._replace(bias=bias, alibi=alibi, sinks=sinks), lse)
    outputs = [(result.output, grad_output), (result.lse, grad_lse)] if lse else [(result.output, grad_output)]
    found = _gradients(outputs, [leaf for leaf, want in zip(leaves, wanted, strict=True) if want])
    return _where_wanted(wanted, found, like=grad_output)


def _fake_differentiate(grad_output: Tensor, _grad_lse: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *arrays, _, wanted = arguments
    flat = Flat(*arrays[3:])
    sources = (*arrays[:3], flat.bias, flat.alibi, flat.sinks)
    found = (torch.empty_like(array) for array, want in zip(sources, wanted, strict=True) if want)
    return _where_wanted(wanted, found, like=grad_output)


attention_operator: Any = torch.library.custom_op(
    "attnkit::attention", _attend, mutates_args=(), schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)"
)
backward_operator: Any = torch.library.custom_op(
    "attnkit::attention_backward",
    _differentiate,
    mutates_args=(),
    schema=f"(Tensor grad_output, Tensor grad_lse, {_ARGUMENTS}, bool[] wanted) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save the arguments of the operator for ``differentiate``."""
    del output
    query, key, value, *options, ctx.lse = inputs
    flat = Flat(*options)
    optional = {name: getattr(flat, name) for name in _OPTIONAL}
    ctx.save_for_backward(query, key, value, *optional.values(), *flat.documents, *flat.dense)
    ctx.documents = len(flat.documents)
    ctx.options = {**flat._asdict(), **dict.fromkeys((*optional, "documents", "dense"))}


def differentiate(
    ctx: Any, grad_output: Tensor, grad_lse: Tensor, operator: Callable[..., Any] = backward_operator
) -> tuple[Any, ...]:
    """Give a gradient, or nothing, for each argument of the operator."""
    query, key, value, *rest = ctx.saved_tensors
    optional, masks = rest[: len(_OPTIONAL)], rest[len(_OPTIONAL) :]
    documents, dense = masks[: ctx.documents], masks[ctx.documents :]
    options = {**ctx.options, **dict(zip(_OPTIONAL, optional, strict=True)), "documents": documents, "dense": dense}
    names = ("query", "key", "value", *options, "lse")
    needed = dict(zip(names, ctx.needs_input_grad, strict=True))
    wanted = [bool(needed[name]) for name in _DIFFERENTIABLE]
    found = operator(grad_output, grad_lse, query, key, value, *options.values(), ctx.lse, wanted)
    grads: dict[str, Any] = {**dict.fromkeys(names), "documents": [None] * len(documents), "dense": [None] * len(dense)}
    grads.update((name, grad) for name, grad, want in zip(_DIFFERENTIABLE, found, wanted, strict=True) if want)
    return tuple(grads.values())


def refuse_second(*_: Any) -> NoReturn:
    """Refuse to differentiate gradients."""
    raise UnsupportedError(
        "attention has no second derivatives where a call is compiled, exported or transformed; outside, the path "
        "torch:dense has them"
    )


attention_operator.register_fake(_fake_attend)
attention_operator.register_autograd(differentiate, setup_context=remember)
attention_operator.register_vmap(partial(fold, attention_operator))
backward_operator.register_fake(_fake_differentiate)
backward_operator.register_autograd(refuse_second)
backward_operator.register_vmap(partial(loop, backward_operator))


def _run(query: Tensor, key: Tensor, value: Tensor, flat: Flat, lse: bool) -> AttentionOutput:
    arguments = unflatten(flat, query.device)
    with torch.autocast(query.device.type, enabled=False):
        if lse:
            return attention_with_lse(query, key, value, **arguments)
        return AttentionOutput(attention(query, key, value, **arguments))


@contextmanager
def _recording() -> Iterator[None]:
    """Let autograd record inside an operator, where it is switched off below the operator's own gradients."""
    keys = torch._C.DispatchKey
    with torch.enable_grad(), torch._C._PreserveDispatchKeyGuard():
        for key in (keys.AutogradFunctionality, keys.AutogradOther, keys.AutogradNestedTensor, keys.ADInplaceOrView):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


def _gradients(outputs: Sequence[tuple[Any, Tensor]], leaves: Sequence[Tensor]) -> Iterator[Tensor]:
    """Give the gradients of leaves; zeros for one that no result depends on, as without keys."""
    recorded = [(output, grad) for output, grad in outputs if output.requires_grad]
    if not recorded:
        return map(torch.zeros_like, leaves)
    results, grads = zip(*recorded, strict=True)
    return iter(torch.autograd.grad(results, leaves, grads, allow_unused=True, materialize_grads=True))


def _where_wanted(wanted: Sequence[bool], found: Iterator[Tensor], like: Tensor) -> tuple[Tensor, ...]:
    """Give the found gradients their layout, and empty tensors in the place of the others."""
    grads = [next(found) if want else None for want in wanted]
    laid_out = [grad if grad is None else _laid_out(grad) for grad in grads[:3]]
    laid_out += [grad if grad is None else grad.contiguous() for grad in grads[3:]]
    return tuple(_nothing(like, like.dtype) if grad is None else grad for grad in laid_out)


def _accumulate(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    batch, heads, rows, size = shape
    return like.new_empty((batch, rows, heads, size)).transpose(1, 2)


def _laid_out(array: Tensor) -> Tensor:
    return array.transpose(1, 2).contiguous().transpose(1, 2)


def _nothing(like: Tensor, dtype: torch.dtype) -> Tensor:
    return like.new_empty(0, dtype=dtype)
