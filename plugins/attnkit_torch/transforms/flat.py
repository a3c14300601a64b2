"""The options of a call as flat arguments of an operator, whose schema takes tensors, numbers and strings only.

A mask becomes the integers of its positional kinds, and lists of the tensors of the others; lengths and offsets become
tensors on the host, where they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnkit import BackendNotFoundError, DTypeError, Mask

_UNLIMITED = -1  # no kind has a negative argument


class Flat(NamedTuple):
    """What the operator takes besides query, key and value, in the order of its schema.

    Attributes
    ----------
    positional
        ``[causal, left, right, prefix, *chunks]`` of the mask, -1 for "not restricted".
    documents
        ``ids_q`` and ``ids_k`` of each ``documents`` term, in turn.
    dense
        The arrays of the ``dense`` terms.
    backend
        Names of the chosen backends, joined by commas; empty without a choice.

    The others are those of ``attnkit.attention``.
    """

    positional: list[int]
    documents: list[Tensor]
    dense: list[Tensor]
    scale: float | None
    softcap: float | None
    bias: Tensor | None
    alibi: Tensor | None
    sinks: Tensor | None
    query_lengths: Tensor | None
    kv_lengths: Tensor | None
    query_offset: Tensor | None
    key_offset: Tensor | None
    backend: str


def flatten(options: Any, backend: Any, batch: int) -> Flat:
    """Flatten the options of a call with ``batch`` sequences.

    Raises
    ------
    DTypeError
        If one cannot be an argument of an operator, in eager mode neither.
    BackendNotFoundError
        If the backend is an object: it has to be named.
    """
    return Flat(
        _positional(options.mask),
        [_tensor(ids) for term in _terms(options.mask, "documents") for ids in term[1:]],
        [_tensor(term[1]) for term in _terms(options.mask, "dense")],
        _number("scale", options.scale),
        _number("softcap", options.softcap),
        _given_tensor("bias", options.bias),
        _given_tensor("alibi", options.alibi),
        _given_tensor("sinks", options.sinks),
        _integers(options.query_lengths, batch),
        _integers(options.kv_lengths, batch),
        _integers(options.query_offset, batch),
        _integers(options.key_offset, batch),
        _names(backend),
    )


def unflatten(flat: Flat, device: torch.device) -> dict[str, Any]:
    """Give the keyword arguments of ``attnkit.attention`` for a query on ``device``."""
    arguments = flat._asdict()
    mask = _mask(arguments.pop("positional"), arguments.pop("documents"), arguments.pop("dense"), device)
    for name in ("query_lengths", "kv_lengths", "query_offset", "key_offset"):
        arguments[name] = _on_host(arguments[name])
    names = arguments.pop("backend").split(",")
    return {**arguments, "mask": mask, "backend": names if len(names) > 1 else names[0] or None}


def _terms(mask: Mask | None, kind: str) -> list[tuple[Any, ...]]:
    if mask is None:
        return []
    if not isinstance(mask, Mask):
        raise DTypeError(f"mask must be a Mask or None, got {type(mask).__name__}; wrap booleans in Mask.dense(...)")
    return [term for term in mask.terms if term[0] == kind]


def _positional(mask: Mask | None) -> list[int]:
    left, right, prefix = _UNLIMITED, _UNLIMITED, _UNLIMITED
    for term in _terms(mask, "window"):
        left, right = (_UNLIMITED if size is None else size for size in term[1:])
    for term in _terms(mask, "prefix"):
        prefix = term[1]
    return [len(_terms(mask, "causal")), left, right, prefix, *[term[1] for term in _terms(mask, "chunked")]]


def _mask(
    positional: Sequence[int], documents: Sequence[Tensor], dense: Sequence[Tensor], device: torch.device
) -> Mask | None:
    causal, left, right, prefix, *chunks = positional
    terms: list[tuple[Any, ...]] = [("causal",)] * causal
    if left != _UNLIMITED or right != _UNLIMITED:
        terms.append(("window", *(None if size == _UNLIMITED else size for size in (left, right))))
    if prefix != _UNLIMITED:
        terms.append(("prefix", prefix))
    terms += [("chunked", size) for size in chunks]
    ids = [_at_home(array, device) for array in documents]
    terms += [("documents", *pair) for pair in zip(ids[::2], ids[1::2], strict=True)]
    terms += [("dense", _at_home(array, device)) for array in dense]
    return Mask(tuple(terms)) if terms else None


def _tensor(array: Any) -> Tensor:
    """Give a tensor of a NumPy array, which may be read-only, or the tensor itself."""
    return array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))


def _number(name: str, number: Any) -> float | None:
    """Give a number; to a compiler a NumPy number is an array, whose value it does not know."""
    if isinstance(number, np.ndarray | Tensor):
        raise DTypeError(f"{name} must be a Python number where a call is compiled; convert it outside, float({name})")
    return number if number is None or isinstance(number, float | int) else float(number)


def _given_tensor(name: str, array: Any) -> Tensor | None:
    if array is None or isinstance(array, Tensor):
        return array
    raise DTypeError(f"{name} must be a tensor, as the query is, got {type(array).__name__}")


def _integers(numbers: Any, batch: int) -> Tensor | None:
    if numbers is None or isinstance(numbers, Tensor):
        return numbers
    if isinstance(numbers, int | np.integer) and not isinstance(numbers, bool | np.bool_):
        return torch.full((batch,), int(numbers), dtype=torch.int64)
    array = torch.from_numpy(np.array(numbers))
    return array if array.ndim else array.expand(batch)  # to a compiler a NumPy integer is an array without axes


def _on_host(numbers: Tensor | None) -> Any:
    return numbers.numpy() if numbers is not None and numbers.is_cpu else numbers


def _at_home(array: Tensor, device: torch.device) -> Any:
    """Give the array as a mask may hold it: on the query's device, or as a NumPy array."""
    return array if array.device == device else array.numpy()


def _names(backend: Any) -> str:
    choices: Iterable[Any] = () if backend is None else [backend] if isinstance(backend, str) else backend
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, str) for choice in choices):
        raise BackendNotFoundError(
            "backend must be named where a call is compiled, exported or transformed, since an operator cannot hold "
            f"a Backend; pass its name, got {type(backend).__name__}"
        )
    return ",".join(choices)
