"""GGUF, the container: metadata at once, tensors when asked for, everything checked against the length of the file.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The ``gguf`` package dequantises; its
``GGUFReader`` is not used because it takes seconds for the strings of a vocabulary and trusts the lengths in the file.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, dequantize

from attnkit.models.errors import ModelError

READABLE = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1")
_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_LENGTH = struct.Struct("<Q")
_STORED = {"F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies: its shape ``[out, in]``, element type, first byte and size in bytes."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


class GGUFFile:
    """A GGUF file (version 2 or 3, little-endian), opened for reading.

    Attributes
    ----------
    path
        The file.
    metadata
        Key to value; strings are ``str``, arrays of strings lists, arrays of numbers NumPy arrays.
    tensors
        Name to ``GGUFTensor``.

    Raises
    ------
    ModelError
        If the file cannot be read, is cut short anywhere, contradicts itself, or holds a type not in ``READABLE``.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._cursor = _Cursor(self.path)
        tensor_count, field_count = self._header()
        self.metadata = self._fields(field_count)
        self.tensors = self._index(tensor_count)

    def read(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Give one tensor as float32 ``[out, in]``; it may be read-only."""
        tensor = self.tensors[name]
        kind = tensor.kind
        stored = np.dtype(_STORED.get(kind.name, "u1"))
        data = self._cursor.array(tensor.offset, stored, tensor.nbytes // stored.itemsize)
        weights: np.ndarray[Any, np.dtype[np.float32]] = dequantize(data.reshape(*tensor.shape[:-1], -1), kind)
        return weights

    def _header(self) -> tuple[int, int]:
        cursor = self._cursor
        if cursor.take(4, "the magic number") != b"GGUF":
            raise cursor.fault("not a GGUF file; of a Hugging Face model, give the directory")
        version = cursor.number("<u4", "the version")
        if version not in (2, 3):
            raise cursor.fault(f"GGUF version {version}; versions 2 and 3, little-endian, are understood")
        return cursor.number("<u8", "the tensor count"), cursor.number("<u8", "the metadata count")

    def _fields(self, count: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for _ in range(count):
            key = self._cursor.string("a metadata key")
            if key in fields:
                raise self._cursor.fault(f"metadata key {key!r} appears twice")
            fields[key] = self._cursor.value(f"metadata {key!r}")
        return fields

    def _index(self, count: int) -> dict[str, GGUFTensor]:
        found: dict[str, GGUFTensor] = {}
        for _ in range(count):
            name = self._cursor.string("a tensor name")
            if name in found:
                raise self._cursor.fault(f"tensor {name!r} appears twice")
            found[name] = self._tensor(name)
        base = self._align(self._cursor.position)
        return {name: self._placed(name, tensor, base) for name, tensor in found.items()}

    def _tensor(self, name: str) -> GGUFTensor:
        cursor, what = self._cursor, f"tensor {name!r}"
        rank = cursor.number("<u4", what)
        if not 1 <= rank <= 4:
            raise cursor.fault(f"{what} has {rank} axes; 1 to 4 are possible")
        shape = tuple(cursor.number("<u8", what) for _ in range(rank))[::-1]
        kind = self._kind(name, cursor.number("<u4", what))
        block, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise cursor.fault(f"{what} of shape {list(shape)} does not divide into {kind.name} blocks of {block}")
        return GGUFTensor(shape, kind, cursor.number("<u8", what), math.prod(shape) // block * size)

    def _kind(self, name: str, number: int) -> GGMLQuantizationType:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            kind = None
        if kind is None or kind.name not in READABLE:
            found = number if kind is None else kind.name
            raise self._cursor.fault(f"tensor {name!r} has type {found}; readable are {', '.join(READABLE)}")
        return kind

    def _align(self, position: int) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._cursor.fault(f"general.alignment is {alignment!r}; it must be a power of two")
        return -(-position // alignment) * alignment

    def _placed(self, name: str, tensor: GGUFTensor, base: int) -> GGUFTensor:
        offset = base + tensor.offset
        if offset + tensor.nbytes > self._cursor.size:
            raise self._cursor.fault(
                f"cut short: tensor {name!r} ends at byte {offset + tensor.nbytes}, the file at {self._cursor.size}"
            )
        return GGUFTensor(tensor.shape, tensor.kind, offset, tensor.nbytes)


class _Cursor:
    """Reads a mapped file from front to back and never past its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        try:
            with path.open("rb") as file:
                # An empty file cannot be mapped; as bytes it fails at the magic number like any short one.
                empty = not path.stat().st_size
                self._data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror or error}") from None
        self.size = len(self._data)

    def fault(self, problem: str) -> ModelError:
        return ModelError(f"{self.path}: {problem}")

    def take(self, count: int, what: str) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > self.size:
            raise self.fault(f"cut short: {what} needs {count} bytes at byte {start}, the file ends at {self.size}")
        return self._data[start : self.position]

    def array(self, offset: int, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._data, dtype, count, offset) if count else np.empty(0, dtype)

    def number(self, dtype: str, what: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(kind.itemsize, what), kind)[0].item()

    def string(self, what: str) -> str:
        (length,) = _LENGTH.unpack(self.take(8, what))
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not UTF-8: {error.reason}") from None

    def value(self, what: str) -> Any:
        kind = self._type(what)
        if kind is GGUFValueType.ARRAY:
            return self._array_value(what)
        return self.string(what) if kind is GGUFValueType.STRING else self.number(_SCALARS[kind], what)

    def _array_value(self, what: str) -> Any:
        kind = self._type(what)
        (count,) = _LENGTH.unpack(self.take(8, what))
        if kind is GGUFValueType.STRING:
            return [self.string(what) for _ in range(count)]
        if kind is GGUFValueType.ARRAY:
            raise self.fault(f"{what} is an array of arrays, which no model of this family has")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize, what), dtype)

    def _type(self, what: str) -> GGUFValueType:
        number = self.number("<u4", what)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.fault(f"{what} has the unknown type {number}") from None
