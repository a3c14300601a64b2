"""Files of arrays: raw elements, row-major and little-endian; a size is known before a byte is read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from attnkit_conformance.packages.describing import ArrayDescription
from attnkit_conformance.packages.errors import PackageError

Array = np.ndarray[Any, Any]
MOST_BYTES: Final = 1 << 34
_CHUNK: Final = 1 << 20


def write_array(path: Path, array: Array) -> None:
    """Write the elements of an array."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = np.ascontiguousarray(array)
    path.write_bytes(_little(flat).tobytes())


def read_array(path: Path, dtype: str, shape: Sequence[int]) -> Array:
    """Read an array.

    Raises
    ------
    PackageError
        If there is no such file, or it is of another size.
    """
    told = ArrayDescription(dtype=dtype, shape=tuple(shape))  # type: ignore[arg-type]  # it is checked
    if told.nbytes > MOST_BYTES:
        raise PackageError(f"{path.name}: {told.nbytes} bytes are more than an array may have, {MOST_BYTES}")
    if path.is_symlink() or not path.is_file():
        raise PackageError(f"{path}: no such file")
    size = path.stat().st_size
    if size != told.nbytes:
        raise PackageError(f"{path}: must be {told.nbytes} bytes ({dtype} {list(shape)}), got {size}")
    elements = np.frombuffer(path.read_bytes(), np.dtype(dtype))
    return _little(elements).reshape(told.shape)


def inside(folder: Path, name: str) -> Path:
    """Give the place of a file of a folder.

    Raises
    ------
    PackageError
        If its name leads out of the folder.
    """
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name or not parts.parts:
        raise PackageError(f"{name!r}: the name of a file must not lead out of the package")
    return folder.joinpath(*parts.parts)


def digest(path: Path) -> str:
    """Give the SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _little(array: Array) -> Array:
    """Swap bytes on a machine that is not little-endian."""
    return array if np.little_endian else array.byteswap()
