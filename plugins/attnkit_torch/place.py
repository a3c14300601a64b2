"""Operands to where the query is: NumPy arrays among them become tensors on its device.

Lengths and offsets stay on the host, since the paths loop over them there.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from attnkit import AttentionRequest, Operands


def has_arrays(request: AttentionRequest) -> bool:
    """Tell whether a call has any operand that may have to be moved."""
    mask = request.mask
    return bool(request.bias or request.alibi or request.sinks or mask.documents or mask.dense)


def place(operands: Operands, query: Tensor) -> Operands:
    """Give operands whose bias, slopes, sinks, ids and dense masks are tensors on the query's device."""
    return operands._replace(
        bias=_moved(operands.bias, query.device),
        alibi=_moved(operands.alibi, query.device),
        sinks=_moved(operands.sinks, query.device),
        documents=tuple((_moved(q, query.device), _moved(k, query.device)) for q, k in operands.documents),
        dense=tuple(_moved(array, query.device) for array in operands.dense),
    )


def _moved(array: Any, device: torch.device) -> Any:
    return as_tensor(array).to(device) if isinstance(array, np.ndarray) else array


def as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Give a tensor on the CPU that shares the memory of an array where torch can, and is a copy elsewhere.

    Torch has no read-only tensors, no negative strides and no ``ml_dtypes``.
    """
    if array.dtype == ml_dtypes.bfloat16:
        return as_tensor(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Copy a tensor into a NumPy array; waits for the device."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.contiguous().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(tensor.numpy())
