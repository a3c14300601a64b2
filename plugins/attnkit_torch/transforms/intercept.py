"""What happens to ``attnkit.attention`` on tensors inside transformations of programs, and under autocast.

``torch.compile``, ``torch.export`` and ``torch.func`` hand over stand-ins for tensors and cannot see through the choice
of a backend. They are given the operator ``attnkit::attention`` (``library.py``), which chooses when it is run.

Under ``torch.autocast`` query, key and value are cast to its element type first, as
``torch.nn.functional.scaled_dot_product_attention`` does; float64 stays. What follows is the call on the cast tensors,
which computes as the contract says: bias and sinks count by value, and nothing inside is cast again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled as autocast_is_on
from torch._C._functorch import peek_interpreter_stack as running_transform
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from attnkit import AttentionOutput, UnsupportedError, attention, attention_with_lse
from attnkit_torch.transforms.flat import flatten
from attnkit_torch.transforms.functional import TransformedAttention
from attnkit_torch.transforms.library import attention_operator

_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_CAST = (torch.float32, torch.float16, torch.bfloat16)


def intercept(
    query: Tensor, key: Tensor, value: Tensor, options: Any, lse: bool, backend: Any
) -> AttentionOutput | None:
    """Take a call that the ordinary way cannot, see ``attnkit.interception``.

    Parameters
    ----------
    query, key, value
        ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]``.
    options, lse, backend
        The rest of the arguments of ``attnkit.attention``, and whether the log-sum-exp is wanted.

    Returns
    -------
    The result, or ``None`` where the call is an ordinary one.
    """
    # Every call in eager mode pays for what comes before the first return.
    traced = is_dynamo_compiling()
    changed = False
    if traced or autocast_is_on():
        query, key, value, changed = _autocast(query, key, value)
    elif type(query) in _PLAIN and running_transform() is None:
        if forward_ad._current_level >= 0:
            _refuse_tangents(query, key, value, backend)
        return None
    transformed = not traced and running_transform() is not None
    if traced or transformed or _stands_in(query):
        operator = TransformedAttention.apply if transformed else attention_operator
        output, found = operator(query, key, value, *flatten(options, backend, query.shape[0]), lse)
        return AttentionOutput(output, found if lse else None)
    return _call(query, key, value, options, lse, backend) if changed else None


def _autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Cast what autocast is meant for, and tell whether there was anything."""
    kind = query.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return query, key, value, False
    dtype = torch.get_autocast_dtype(kind)
    if not any(array.dtype in _CAST and array.dtype != dtype for array in (query, key, value)):
        return query, key, value, False
    query, key, value = (array.to(dtype) if array.dtype in _CAST else array for array in (query, key, value))
    return query, key, value, True


def _refuse_tangents(query: Tensor, key: Tensor, value: Tensor, backend: Any) -> None:
    """Refuse dual numbers on all paths but the one in plain operations; others would drop their tangents."""
    if backend != "torch:dense" and any(
        forward_ad.unpack_dual(array).tangent is not None for array in (query, key, value)
    ):
        raise UnsupportedError(
            "attention has forward-mode derivatives on backend='torch:dense' alone; use that, or vjp"
        )


def _stands_in(tensor: Tensor) -> bool:
    """Tell whether a tensor is of a class that takes over every operation on it, as fake tensors do."""
    return type(tensor) not in _PLAIN and type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def _call(query: Tensor, key: Tensor, value: Tensor, options: Any, lse: bool, backend: Any) -> AttentionOutput:
    if lse:
        return attention_with_lse(query, key, value, **options._asdict(), backend=backend)
    return AttentionOutput(attention(query, key, value, **options._asdict(), backend=backend))
