"""Files of caches: a safetensors file that tells what it holds, with a hash over all of it.

::

    8 bytes    length of the header, little-endian
    header     {"__metadata__": {"sha256": "64 digits", "attnkit_cache": "an outline, as JSON"}, "layers.0.key...": ...}
    data       the planes of layer 0, 1, ..., one behind the other

The hash is that of the whole file with ``0`` for each of its own digits. What the tensors are follows from the outline,
and a file is refused that says anything else; nothing is allocated before. The library ``safetensors`` reads these
files, but cannot write them: it takes all tensors at once, and no hash.

Axes: ``K`` key/value heads, ``N`` tokens of an image, ``F`` features of a plane.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from pydantic import ValidationError

from attnkit.arrays import numpy_dtype
from attnkit.cache.atomic import replacing
from attnkit.cache.image import HostArray, HostPlanes, Image
from attnkit.cache.outline import SCHEMA, Outline, Plane
from attnkit.errors import CacheFileError

Path = str | os.PathLike[str]
Tensors = dict[str, dict[str, Any]]

_NAMES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "uint8": "U8",
}
_START, _DIGITS = b'{"__metadata__":{"sha256":"', 64
_SECTION = "attnkit_cache"
_MOST_HEADER = 1 << 25
_CHUNK = 1 << 20
_SHOWN = 300


def write_image(path: Path, image: Image) -> str:
    """Write an image to a file, which takes the place of ``path`` whole or not at all; give its hash."""
    header = _header(image.outline)
    with replacing(path) as file:
        hashed = hashlib.sha256()
        for piece in _pieces(header, image):
            hashed.update(piece)
            file.write(piece)
        file.seek(8 + len(_START))
        file.write(hashed.hexdigest().encode())
    return hashed.hexdigest()


@contextmanager
def open_image(path: Path) -> Iterator[tuple[Image, str]]:
    """Give the image in a file and its hash, all of it checked; planes are read when asked for, inside the block.

    Raises
    ------
    FileNotFoundError
        If there is none.
    CacheFileError
        If the file is not whole, not what was written, or contradicts itself.
    """
    with open(path, "rb") as file:
        try:
            header, digits = _checked_bytes(file)
            outline, tensors = _checked_outline(header, os.fstat(file.fileno()).st_size - 8 - len(header))
        except _FaultError as fault:
            raise CacheFileError(f"{os.fspath(path)}: {fault}") from None

        def layer(number: int) -> HostPlanes:
            offsets = {plane: tensors[plane.name]["data_offsets"][0] for plane in outline.planes(number)}
            return tuple(_read(file, 8 + len(header) + offset, plane) for plane, offset in offsets.items())

        yield Image(outline, layer), digits


class _FaultError(Exception):
    """What is wrong with a file."""


def _pieces(header: bytes, image: Image) -> Iterator[bytes | memoryview[int]]:
    yield len(header).to_bytes(8, "little")
    yield header
    for planes in image:
        for plane in planes:
            yield np.ascontiguousarray(plane).reshape(-1).view(np.uint8).data


def _header(outline: Outline) -> bytes:
    """Give the header of a file, with zeros for the digits of its hash."""
    metadata = {"sha256": "0" * _DIGITS, _SECTION: outline.model_dump_json()}
    text = json.dumps({"__metadata__": metadata, **_tensors(outline)}, separators=(",", ":")).encode()
    if len(text) > _MOST_HEADER:
        raise CacheFileError(
            f"the counters and page tables must take at most {_MOST_HEADER} bytes of a file, got {len(text)}; "
            "offload or save fewer sequences at a time"
        )
    return text + b" " * (-len(text) % 8)


def _tensors(outline: Outline) -> Tensors:
    """Describe the tensors of a file, as its header does."""
    described, end = {}, 0
    for layer in range(outline.config.num_layers):
        for plane in outline.planes(layer):
            start, end = end, end + math.prod(plane.shape) * numpy_dtype(plane.dtype).itemsize
            dtype, shape = _NAMES[plane.dtype], list(plane.shape)
            described[plane.name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return described


def _checked_bytes(file: BinaryIO) -> tuple[bytes, str]:
    """Give the header of a file and its hash, which was found right."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if not len(_START) + _DIGITS < length <= min(size - 8, _MOST_HEADER):
        raise _FaultError(f"no cache file, or cut short: it has {size} bytes, and its header would take {length}")
    header = file.read(length)
    first, last = len(_START), len(_START) + _DIGITS
    if header[:first] != _START:
        raise _FaultError("no cache file: its header does not begin with a sha256")
    hashed = hashlib.sha256(length.to_bytes(8, "little") + header[:first] + b"0" * _DIGITS + header[last:])
    while chunk := file.read(_CHUNK):
        hashed.update(chunk)
    if hashed.hexdigest().encode() != header[first:last]:
        raise _FaultError("its sha256 is not that of its content: it was altered, or cut short; save the cache again")
    return header, hashed.hexdigest()


def _checked_outline(header: bytes, size: int) -> tuple[Outline, Tensors]:
    """Give the outline in a header and the tensors that follow from it, which fill ``size`` bytes of data."""
    try:
        found = json.loads(header)
        section = json.loads(found.pop("__metadata__")[_SECTION])
        version = section["version"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _FaultError(f"its header is none of a cache file: {type(error).__name__}: {error}") from None
    if version != SCHEMA:
        raise _FaultError(f"its schema version must be {SCHEMA}, got {_short(version)}; a newer attnkit may read it")
    outline = _outline(section)
    tensors = _tensors(outline)
    for name in (*tensors, *found):
        if found.get(name) != tensors.get(name):
            raise _FaultError(f"tensor {_short(name)} must be {tensors.get(name)}, got {_short(found.get(name))}")
    end = max(tensor["data_offsets"][1] for tensor in tensors.values())
    if size != end:
        raise _FaultError(f"its tensors take {end} bytes, it holds {size}")
    return outline, tensors


def _outline(section: Any) -> Outline:
    try:
        return Outline.model_validate(section)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "outline"
        raise _FaultError(f"its header contradicts itself: {_short(where)}: {_short(first['msg'])}") from None


def _read(file: BinaryIO, start: int, plane: Plane) -> HostArray:
    array = np.empty(plane.shape, numpy_dtype(plane.dtype))
    file.seek(start)
    read: int = file.readinto(array.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]  # a buffered file
    if read != array.nbytes:
        raise CacheFileError(f"{file.name}: it was cut short while it was read")
    return array


def _short(value: object) -> str:
    """Give a value in words, without the megabytes that a forged one may have."""
    return f"{value}" if len(f"{value}") <= _SHOWN else f"{f'{value}'[:_SHOWN]}..."
