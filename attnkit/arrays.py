"""What the core asks of an array of any library: its type names, device, element type and namespace."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import array_api_compat
import numpy as np

from attnkit.errors import DTypeError

Array = Any
DTYPES = ("float16", "bfloat16", "float32", "float64")
_DEVICE_KINDS = {1: "cpu", 2: "cuda", 3: "cpu", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def type_names(array: object) -> tuple[str, ...]:
    """Give the qualified names of an array's class and its bases, most derived first: ``("numpy.ndarray",)``."""
    return class_names(type(array))  # type: ignore[arg-type]  # a class is hashable, whatever its stubs say


@lru_cache(maxsize=256)
def class_names(kind: type) -> tuple[str, ...]:
    """Give the qualified names of a class and its bases, most derived first."""
    return tuple(f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__ if base is not object)


def library_of(array: Array) -> str:
    """Give the root of the module that an array's class comes from: ``"numpy"``."""
    return type_names(array)[-1].partition(".")[0]


def device_of(array: Array) -> str:
    """Give the device as ``"kind"`` for the host, ``"kind:index"`` elsewhere (``"cpu"``, ``"cuda:0"``)."""
    if isinstance(array, np.ndarray):
        return "cpu"
    place = getattr(array, "device", None)
    known = type(array), place
    try:
        return _device_names[known]
    except (KeyError, TypeError):  # not met before, or not hashable
        name = _asked_device(array)
    if place is not None and isinstance(place, Hashable):
        _device_names[known] = name
    return name


_device_names: dict[tuple[type, Any], str] = {}
"""What ``_asked_device`` gave, by class and ``array.device``; asking takes microseconds."""


def _asked_device(array: Array) -> str:
    try:
        kind, index = array.__dlpack_device__()
    except (ValueError, BufferError):  # a device that DLPack has no number for, such as torch's "meta"
        return str(array.device)
    name = _DEVICE_KINDS.get(int(kind), f"dlpack{int(kind)}")
    return name if name == "cpu" else f"{name}:{index}"


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """Give the bare name of an element type of any library: ``"float32"``."""
    return str(dtype).rpartition(".")[2]


@lru_cache(maxsize=16)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Give the NumPy dtype of one of ``DTYPES``."""
    import ml_dtypes  # only bfloat16 needs it

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def namespace(*arrays: Array) -> Any:
    """Give the array-API namespace of the arrays.

    Raises
    ------
    DTypeError
        If they are of no library that has one, or of several.
    """
    try:
        return array_api_compat.array_namespace(*arrays)
    except TypeError as error:
        raise DTypeError(f"arrays must be of one library of the array API: {error}") from error


def needs_grad(*arrays: Array) -> bool:
    """Tell whether any of the arrays takes part in automatic differentiation, as its library is set at the moment."""
    for array in arrays:  # noqa: SIM110  # any() over a generator costs as much as all the rest of it
        if getattr(array, "requires_grad", False) and _recording(array):
            return True
    return False


def _recording(array: Array) -> bool:
    asked = getattr(sys.modules.get(library_of(array)), "is_grad_enabled", None)
    return asked is None or bool(asked())


def is_array(value: Any) -> bool:
    """Tell whether ``value`` looks like an array: it has a shape, an element type and a device."""
    return type(value) in _array_classes or _looks_like_one(value)


_array_classes: set[type] = {np.ndarray}
"""Classes whose attributes make every instance an array, as far as they were met."""


def _looks_like_one(value: Any) -> bool:
    marks = ("shape", "dtype", "__dlpack_device__")
    if all(hasattr(type(value), mark) for mark in marks):
        _array_classes.add(type(value))
        return True
    return all(hasattr(value, mark) for mark in marks)
