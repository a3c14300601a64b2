"""CacheCalls: everything that the suite ever asks of a cache; a part of ``Harness``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np

import attnkit as ak

NumpyArray = np.ndarray[Any, Any]
Thing = Any


class SavedFile:
    """A file of a folder of its own, which goes when nobody holds it any more."""

    def __init__(self) -> None:
        folder = mkdtemp(prefix="attnkit-conformance-")
        weakref.finalize(self, rmtree, folder, ignore_errors=True)
        self.path = Path(folder) / "cache.safetensors"


@dataclass(frozen=True, eq=False)
class Kept:
    """What a cache gave so as to get it back: a snapshot, or a sequence that it let go of. Nobody looks inside.

    Attributes
    ----------
    value
        What it gave.
    file
        Where the rest of it lies, if that is on disk.
    """

    value: Any
    file: SavedFile | None = None


class CacheCalls:
    """The part of a harness that is about caches."""

    choice: Any

    def make_cache(self, config: Mapping[str, Any]) -> Thing:
        """Call ``attnkit.make_cache`` with the fields of a ``KVCacheConfig``."""
        return ak.make_cache(ak.KVCacheConfig(**config), backend=self.choice)

    def make_pool(self, config: Mapping[str, Any]) -> Thing:
        """Call ``attnkit.PagePool`` with the fields of a ``KVCacheConfig``."""
        return ak.PagePool(ak.KVCacheConfig(**config), backend=self.choice)

    def pooled_cache(self, config: Mapping[str, Any], pool: Thing) -> Thing:
        """Call ``attnkit.make_cache`` with a pool."""
        return ak.make_cache(ak.KVCacheConfig(**config), backend=self.choice, pool=pool)

    def cache_call(self, cache: Thing, layer: int | None, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of a layer of a cache, or of the whole stack: what it gives, as things and numbers."""
        given = [argument.value if isinstance(argument, Kept) else argument for argument in arguments]
        result = getattr(cache if layer is None else cache[layer], method)(*given, **options)
        return tuple(result) if isinstance(result, tuple) else result

    def cache_kept(self, cache: Thing, method: str, *arguments: Any) -> Thing:
        """Call a method of a stack whose result only ever goes back to it."""
        return Kept(getattr(cache, method)(*arguments))

    def cache_counter(self, cache: Thing, layer: int | None, name: str) -> Thing:
        """Give a counter of a layer of a cache, or of the whole stack, as it was handed out."""
        return getattr(cache if layer is None else cache[layer], name)

    def cache_count(self, cache: Thing, layer: int | None, name: str) -> NumpyArray:
        """Give the numbers that a counter shows: one for each sequence, or a single one."""
        return np.array(self.cache_counter(cache, layer, name))

    def cache_checked(self, cache: Thing) -> None:
        """Let a cache look at its own bookkeeping, where it has a way to."""
        check = getattr(cache, "check_invariants", None)
        if check is not None:
            check()

    # Files

    def save_cache(self, cache: Thing) -> Thing:
        """Call ``KVCache.save``; gives the file."""
        file = SavedFile()
        cache.save(file.path)
        return file

    def load_cache(self, file: Thing, config: Mapping[str, Any] | None = None) -> Thing:
        """Call ``attnkit.load_cache``, for a cache of another configuration too."""
        wanted = None if config is None else ak.KVCacheConfig(**config)
        return ak.load_cache(file.path, backend=self.choice, config=wanted)

    def offload_to_file(self, cache: Thing, sequence: int) -> Thing:
        """Call ``KVCache.offload`` with a path; gives what it gives, and the file with it."""
        file = SavedFile()
        return Kept(cache.offload(sequence, file.path), file)

    def damaged(self, file: Thing, place: float, bits: int) -> Thing:
        """Copy a file, with some bits of one byte changed, or without any byte from there on where ``bits`` is 0.

        ``place`` is a share of the file: 0 is its first byte, 1 its last.
        """
        content = bytearray(file.path.read_bytes())
        at = round(place * (len(content) - 1))
        if bits:
            content[at] ^= bits
        else:
            del content[at:]
        other = SavedFile()
        other.path.write_bytes(content)
        return other
