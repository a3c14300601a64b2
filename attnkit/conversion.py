"""Conversion: a call on arrays of one library, run by a backend of another; without a copy where both allow it.

Arrays change hands by DLPack, on the device where they lie. Only an explicit choice of a backend leads here: automatic
choice looks at the owners of the query's arrays alone.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attnkit.arrays import dtype_name, library_of, numpy_dtype
from attnkit.backend import AttentionOutput, Backend, Plan
from attnkit.request import AttentionRequest, Operands

Array = Any
_EXCHANGING = frozenset({"cupy", "numpy", "torch"})
"""Libraries whose ``from_dlpack`` takes any array."""


def can_convert(array: Array) -> bool:
    """Tell whether an array can become one of another library."""
    return library_of(array) in _EXCHANGING


def target_library(backend: Backend, request: AttentionRequest) -> str | None:
    """Give the library that the arrays of a request must be converted to; ``None``: not needed, or not possible."""
    known = backend.capabilities().libraries
    roots = [name.partition(".")[0] for name in request.array_type]
    targets = sorted(known & _EXCHANGING)
    return None if known & set(roots) or roots[-1] not in _EXCHANGING or not targets else targets[0]


def as_taken(backend: Backend, request: AttentionRequest) -> AttentionRequest:
    """Give the request as a backend meets it: on arrays of its own library where the call's can be converted."""
    library = target_library(backend, request)
    return request if library is None else request._replace(array_type=(f"{library}.",))


def converting(plan: Plan, library: str, backend: Backend) -> Plan:
    """Wrap a plan of a backend of another library; results come back in the library of the query.

    What stands for keys and values in pages is the backend's own, and is left as it is.
    """

    def run(query: Array, key: Array, value: Array, operands: Operands) -> AttentionOutput:
        with backend.beside(query):
            arrays = (convert(array, library) if can_convert(array) else array for array in (query, key, value))
            own_query, own_key, own_value = arrays
            found = plan.run(own_query, own_key, own_value, _operands(operands, library))
            back = library_of(query)
            return AttentionOutput(convert(found.output, back), None if found.lse is None else convert(found.lse, back))

    return Plan(plan.path, run, {**plan.details, "converted_to": library})


def convert(array: Array, library: str) -> Array:
    """Give an array as one of another library, on its device: the same memory where both allow it, else a copy.

    Gradients do not follow.
    """
    if library_of(array) == library:
        return array
    module = sys.modules[library]
    if dtype_name(array.dtype) != "bfloat16":
        return module.from_dlpack(_exportable(array))
    # NumPy and CuPy know bfloat16 by ml_dtypes only, which DLPack does not: it travels as the integers of its bits.
    bits = sys.modules[library_of(array)].int16
    bfloat16 = getattr(module, "bfloat16", None) or numpy_dtype("bfloat16")
    return module.from_dlpack(_exportable(array).view(bits)).view(bfloat16)


def _exportable(array: Array) -> Array:
    if isinstance(array, np.ndarray):
        shared = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return array if shared else array.copy()
    for plainly in ("detach", "resolve_conj", "resolve_neg"):  # what DLPack refuses, or drops, of a torch tensor
        array = getattr(array, plainly)() if hasattr(array, plainly) else array
    return array


def _operands(operands: Operands, library: str) -> Operands:
    """Convert what a backend computes with; lengths and offsets that lie on the host stay there."""

    def convert_all(item: Any) -> Any:
        return tuple(map(convert_all, item)) if isinstance(item, tuple) else convert(item, library)

    computed = ("bias", "alibi", "sinks", "documents", "dense")
    changed = {name: convert_all(getattr(operands, name)) for name in computed if getattr(operands, name) is not None}
    for name in ("query_lengths", "kv_lengths", "query_offset", "key_offset"):
        numbers = getattr(operands, name)
        if numbers is not None and not isinstance(numbers, np.ndarray):
            changed[name] = convert(numbers, library)
    return operands._replace(**changed)
