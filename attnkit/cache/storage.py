"""Storage: what a backend must declare to hold a cache, fresh pages in it, and whole pages moved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnkit.backend import Backend
from attnkit.cache.config import KVCacheConfig
from attnkit.capabilities import Capabilities
from attnkit.codec import Codec
from attnkit.errors import DTypeError, Reason, UnsupportedError
from attnkit.pages import IntArray, Pages, Planes
from attnkit.selection import resolve


def checked_backend(config: KVCacheConfig, choice: str | Backend) -> Backend:
    """Give the backend of a choice.

    Raises
    ------
    DTypeError
        If the configuration is none.
    UnsupportedError
        With every reason why the backend cannot hold such a cache.
    """
    if not isinstance(config, KVCacheConfig):
        raise DTypeError(f"config must be a KVCacheConfig, got {type(config).__name__}")
    backend = resolve(choice)[0]
    reasons = undeclared(backend.capabilities(), config)
    if reasons:
        raise UnsupportedError(f"backend {backend.name!r} cannot store this cache:", {backend.name: tuple(reasons)})
    return backend


def undeclared(capabilities: Capabilities, config: KVCacheConfig) -> list[Reason]:
    """Give every reason against a cache that follows from what is declared."""
    asked = [
        ("dtypes", "dtype", config.dtype),
        ("layouts", "layout", config.layout),
        ("codecs", "key_codec", config.key_codec.kind),
        ("codecs", "value_codec", config.value_codec.kind),
    ]
    return [
        Reason(code, name, " or ".join(sorted(getattr(capabilities, code))), wanted)
        for code, name, wanted in asked
        if wanted not in getattr(capabilities, code)
    ]


def fresh_pages(backend: Backend, config: KVCacheConfig, slots: int, page_size: int) -> list[Pages]:
    """Give fresh storage of ``slots`` slots for every layer."""

    def planes(codec: Codec, size: int) -> Planes:
        shapes = codec.planes(size, config.dtype)
        arrays = tuple(backend.allocate((config.num_kv_heads, slots, width), dtype) for width, dtype in shapes)
        return Planes(arrays, codec, size, config.dtype)

    return [
        Pages(planes(config.key_codec, config.head_dim), planes(config.value_codec, config.value_dim), page_size)
        for _ in range(config.num_layers)
    ]


def copy_pages(backend: Backend, pages: Sequence[Pages], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole pages ``(from, to)`` in every layer."""
    move_pages(backend, pages, pages, *np.array(pairs, np.int64).reshape(-1, 2).T)


def move_pages(
    backend: Backend, source: Sequence[Pages], target: Sequence[Pages], old: IntArray, new: IntArray
) -> None:
    """Copy whole pages ``old [n]`` of every layer into pages ``new [n]`` of other storage."""
    size = source[0].page_size
    if len(old) and size:
        places = np.arange(size)
        for layer, other in zip(source, target, strict=True):
            layer.copy(backend, old[:, None] * size + places, other, new[:, None] * size + places)


def copy_all(backend: Backend, source: Sequence[Pages], target: Sequence[Pages]) -> None:
    """Copy everything into the first slots of as much storage or more."""
    for old, new in zip(source, target, strict=True):
        every = np.arange(old.slots)[None]
        old.copy(backend, every, new, every)
