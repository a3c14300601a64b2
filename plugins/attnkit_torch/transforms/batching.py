"""How the operator is mapped over one more axis: a vectorising map is a larger batch.

Axes: ``N`` the mapped axis, ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnkit_torch.transforms.flat import Flat

Operator = Callable[..., tuple[Tensor, ...]]
Mapped = tuple[tuple[Tensor, ...], tuple[int | None, ...]]


def fold(operator: Operator, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Mapped:
    """Fold the mapped axis into the batch, ``[N * B, H, T, D]``; mapped sinks, which have no batch, are looped over.

    Parameters
    ----------
    operator
        ``attnkit::attention``.
    info
        ``batch_size`` is ``N``.
    in_dims
        For each argument the place of its mapped axis, or ``None``.
    arguments
        Those of the operator.

    Returns
    -------
    The results, and where their mapped axes stand.
    """
    *options, lse = arguments[3:]
    flat, dims = Flat(*options), Flat(*in_dims[3:-1])
    if dims.sinks is not None:
        return loop(operator, info, in_dims, *arguments)
    count, batch = info.batch_size, arguments[0].shape[1 if in_dims[0] == 0 else 0]
    arrays = [_folded(array, dim, count, batch, 4) for array, dim in zip(arguments[:3], in_dims[:3], strict=True)]
    changed: dict[str, Any] = {
        "documents": [_folded(ids, dim, count, batch, 2) for ids, dim in _pairs(flat.documents, dims.documents)],
        "dense": [_broadcast(array, dim, count, batch) for array, dim in _pairs(flat.dense, dims.dense)],
        "bias": _broadcast(flat.bias, dims.bias, count, batch),
        "alibi": _folded(flat.alibi, dims.alibi, count, batch, 2),
    }
    for name in ("query_lengths", "kv_lengths", "query_offset", "key_offset"):
        changed[name] = _folded(getattr(flat, name), getattr(dims, name), count, batch, 1)
    output, found = operator(*arrays, *flat._replace(**changed), lse)
    output = output.unflatten(0, (count, batch))
    return (output, found.unflatten(0, (count, batch)) if lse else found), (0, 0 if lse else None)


def loop(operator: Operator, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Mapped:
    """Run the operator once for each index of the mapped axis."""
    results = [operator(*_selected(arguments, in_dims, index)) for index in range(info.batch_size)]
    found = tuple(torch.stack(arrays) for arrays in zip(*results, strict=True))
    return found, (0,) * len(found)


def _selected(arguments: Any, in_dims: Any, index: int) -> Any:
    if isinstance(arguments, Tensor):
        return arguments if in_dims is None else arguments.select(in_dims, index)
    if isinstance(arguments, list | tuple) and isinstance(in_dims, list | tuple):
        return [_selected(item, dim, index) for item, dim in zip(arguments, in_dims, strict=True)]
    return arguments


def _pairs(arrays: list[Tensor], dims: Any) -> list[tuple[Tensor, int | None]]:
    return list(zip(arrays, dims or [None] * len(arrays), strict=True))


def _folded(array: Tensor | None, dim: int | None, count: int, batch: int, rank: int) -> Tensor | None:
    """Give ``[N * B, ...]`` for an array that has ``rank`` axes with the batch; one without it serves all sequences."""
    if array is None or (dim is None and array.ndim < rank):
        return array
    array = array.expand(count, *array.shape) if dim is None else array.movedim(dim, 0)
    while array.ndim <= rank:
        array = array.unsqueeze(1)
    return array.expand(count, batch, *array.shape[2:]).flatten(0, 1)


def _broadcast(array: Tensor | None, dim: int | None, count: int, batch: int) -> Tensor | None:
    """Fold an array that broadcasts to ``[B, H, T, S]``."""
    if array is None or (dim is None and (array.ndim < 4 or array.shape[0] == 1)):
        return array
    return _folded(array, dim, count, batch, 4)
