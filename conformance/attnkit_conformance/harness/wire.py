"""Wire: how values cross between the judge's process and the backend's. Nothing is ever unpickled.

A message is one value, and travels as a frame:

=======  ==============================================================================================
4 bytes  ``AKW1``
4 bytes  length of the header, unsigned, little-endian
header   JSON in UTF-8: ``{"value": VALUE, "arrays": [[DTYPE, [SIZE, ...]], ...]}``
arrays   their elements, one array after the other, row-major, little-endian, nothing in between
=======  ==============================================================================================

In ``VALUE``, null, booleans, integers, finite floats (always with a point or an exponent), strings and lists stand for
themselves. Everything else is an object of one key, which names its kind:

=========================================  ==========================================================
``{"float": "nan"}``, ``"inf"``, ``"-inf"``  a float that JSON has no number for
``{"tuple": [VALUE, ...]}``                a tuple
``{"dict": {NAME: VALUE, ...}}``           a dictionary
``{"array": INDEX}``                       an array, by its place in ``arrays``
``{"scalar": INDEX}``                      a single number that has an element type, as an array of rank 0
``{"thing": NUMBER}``                      an object that lives with the backend, by the number it got there
=========================================  ==========================================================

``DTYPE`` is one of ``DTYPES``; the bits of an array cross as they are, those of NaN too.

The judge asks with ``{"call": N, "method": NAME, "arguments": [...], "options": {...}, "released": [NUMBER, ...]}``.
The backend's process answers each request once and in order with ``{"call": N, "held": COUNT, "result": VALUE}``, or
with ``"error": {"kind": ..., "message": ..., "where": ..., "reasons": {...}}`` in place of the result. The methods are
those of ``harness.local.Harness``. Things in ``released`` are asked for no more; ``held`` counts those that are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, Final

import ml_dtypes  # noqa: F401  # makes numpy.dtype("bfloat16") known
import numpy as np

NumpyArray = np.ndarray[Any, Any]
Refer = Callable[[int], object]
Frame = list[bytes | memoryview]
MAGIC: Final = b"AKW1"
DTYPES: Final = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"}
)
_JSON: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_LARGEST_HEADER: Final = 1 << 26
_LARGEST_ARRAYS: Final = 1 << 34


class WireError(ValueError):
    """What came over the wire is no message, or a value has no way to cross."""


@dataclass(frozen=True, eq=False)
class Reference:
    """An object that lives with the backend.

    Attributes
    ----------
    number
        What the backend's process knows it by.
    """

    number: int


def pack(value: object) -> Frame:
    """Make a message of a value.

    Raises
    ------
    WireError
        If the value has no way to cross.
    """
    arrays: list[NumpyArray] = []
    content = {"value": _encoded(value, arrays), "arrays": [[_name(array.dtype), array.shape] for array in arrays]}
    header = _JSON.encode(content).encode()
    return [MAGIC + len(header).to_bytes(4, "little") + header, *map(_bytes_of, arrays)]


def write(stream: BinaryIO, frame: Frame) -> None:
    """Write a message."""
    for part in frame:
        stream.write(part)
    stream.flush()


def read(stream: BinaryIO, refer: Refer = Reference) -> Any:
    """Read the value of the next message; ``refer`` makes what stands for the number of a thing.

    Raises
    ------
    EOFError
        If the stream has ended, between two messages or inside one.
    WireError
        If what comes is no message.
    """
    start = _exactly(stream, 8)
    size = int.from_bytes(start[4:], "little")
    if start[:4] != MAGIC or size > _LARGEST_HEADER:
        raise WireError(f"a message must start with {MAGIC!r} and the length of its header, got {start!r}")
    header = _exactly(stream, size)
    try:
        content = json.loads(header)
        arrays = list(_empty(content["arrays"]))
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"no header of a message: {header[:80]!r}") from error
    for array in arrays:
        _fill(stream, _bytes_of(array))
    try:
        return _decoded(content["value"], arrays, refer)
    except (AttributeError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"no value of a message: {header[:80]!r}") from error


def mapped(change: Callable[[Any], object], value: Any) -> Any:
    """Change everything in lists, tuples and dictionaries."""
    if isinstance(value, list):
        return [mapped(change, item) for item in value]
    if isinstance(value, tuple):
        return tuple(mapped(change, item) for item in value)
    if isinstance(value, Mapping):
        return {name: mapped(change, item) for name, item in value.items()}
    return change(value)


def _encoded(value: object, arrays: list[NumpyArray]) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(_crossing(value))
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    if isinstance(value, Reference):
        return {"thing": value.number}
    return _encoded_items(value, arrays)


def _encoded_items(value: object, arrays: list[NumpyArray]) -> Any:
    if isinstance(value, list):
        return [_encoded(item, arrays) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item, arrays) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encoded(item, arrays) for name, item in value.items()}}
    raise WireError(f"no way to cross for {type(value).__module__}.{type(value).__qualname__}")


def _crossing(value: NumpyArray | np.generic) -> NumpyArray:
    """Give an array as it crosses: row-major, in the byte order of this machine."""
    name = _name(value.dtype)
    if name not in DTYPES:
        raise WireError(f"no way to cross for an array of {value.dtype}; it must be one of {', '.join(sorted(DTYPES))}")
    return np.asarray(value, np.dtype(name), order="C")


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """Give the name of an element type; NumPy puts it together anew each time."""
    return dtype.name


def _decoded(item: Any, arrays: list[NumpyArray], refer: Refer) -> Any:
    if isinstance(item, list):
        return [_decoded(one, arrays, refer) for one in item]
    if not isinstance(item, dict):
        return item
    ((kind, content),) = item.items()
    match kind:
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "thing":
            return refer(content)
        case "tuple":
            return tuple(_decoded(content, arrays, refer))
        case "dict":
            return {name: _decoded(one, arrays, refer) for name, one in content.items()}
        case "float":
            return float(content)
    raise WireError(f"no kind of value: {kind!r}")


def _empty(described: list[Any]) -> Iterator[NumpyArray]:
    """Make arrays to read into, of plausible sizes only."""
    room = _LARGEST_ARRAYS
    for name, shape in described:
        if name not in DTYPES or not all(type(size) is int and size >= 0 for size in shape):
            raise WireError(f"no array: {name!r} {shape!r}")
        room -= math.prod(shape) * np.dtype(name).itemsize
        if room < 0:
            raise WireError(f"arrays of more than {_LARGEST_ARRAYS} bytes")
        yield np.empty(shape, np.dtype(name))


def _bytes_of(array: NumpyArray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _exactly(stream: BinaryIO, size: int) -> bytearray:
    content = bytearray(size)
    _fill(stream, memoryview(content))
    return content


def _fill(stream: BinaryIO, place: memoryview) -> None:
    filled = 0
    while filled < len(place):
        count = stream.readinto(place[filled:])  # type: ignore[attr-defined]  # every binary stream has it
        if not count:
            raise EOFError("the stream has ended")
        filled += count
