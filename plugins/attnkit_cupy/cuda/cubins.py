"""Cubins on disk: a kernel is compiled once for each version of its sources, whatever process asks for it.

An entry is ``<key>.json``, which names a cubin by the hash of its content. Both files appear at once or not at all, so
that processes may build the same kernel at the same time; what is torn or altered is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnkit_cupy.cuda import nvrtc
from attnkit_cupy.cuda.nvrtc import Cubin, Resources
from attnkit_cupy.folders import ENVIRONMENT, KERNELS, cache_folder, texts
from attnkit_cupy.runtime import NO_DEFINES, KernelError


class StoredCubin(NamedTuple):
    """A cubin in the cache: its file, C++ expression -> name in it, and what its kernels take."""

    path: Path
    lowered: Mapping[str, str]
    resources: Mapping[str, Resources]


def cubin(source: Path, names: Sequence[str], arch: str, defines: Mapping[str, object] = NO_DEFINES) -> StoredCubin:
    """Give kernels of a source, compiled if the cache has none; see ``nvrtc.compile_cubin``.

    Raises
    ------
    KernelError
        If they cannot be compiled, or not be stored.
    """
    folder = cache_folder()
    entry = folder / f"{_key(source, names, arch, defines)}.json"
    found = _read(entry)
    return found or _store(entry, nvrtc.compile_cubin(source, names, arch, defines))


def _key(source: Path, names: Sequence[str], arch: str, defines: Mapping[str, object]) -> str:
    """Hash all that the result depends on."""
    asked = source.name, tuple(names), nvrtc.options(arch, defines, source.parent), nvrtc.version()
    parts = [repr(asked).encode(), *texts(dict.fromkeys((source.parent, KERNELS)))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _read(entry: Path) -> StoredCubin | None:
    """Give what an entry names; ``None`` where there is none, or anything of it is not as it was written."""
    try:
        stored = json.loads(entry.read_text())
        path = entry.parent / f"{stored['sha256']}.cubin"
        if hashlib.sha256(path.read_bytes()).hexdigest() != stored["sha256"]:
            return None
        resources = {name: Resources(*numbers) for name, numbers in stored["resources"].items()}
        return StoredCubin(path, dict(stored["lowered"]), resources)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _store(entry: Path, built: Cubin) -> StoredCubin:
    digest = hashlib.sha256(built.data).hexdigest()
    path = entry.parent / f"{digest}.cubin"
    stored = {"sha256": digest, "lowered": dict(built.lowered), "resources": dict(built.resources)}
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _write(path, built.data)
        _write(entry, json.dumps(stored, indent=1).encode())
    except OSError as error:
        raise KernelError(f"a compiled kernel cannot be stored: {error}; set {ENVIRONMENT} to a folder") from error
    return StoredCubin(path, built.lowered, built.resources)


def _write(path: Path, data: bytes) -> None:
    """Let a file appear whole, also where others write the same one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
