"""Storage: what a backend must declare to hold a cache, and fresh pages in it."""

from __future__ import annotations

from attnkit.backend import Backend
from attnkit.cache.config import KVCacheConfig
from attnkit.capabilities import Capabilities
from attnkit.codec import Codec
from attnkit.errors import Reason, UnsupportedError
from attnkit.pages import Pages, Planes


def check_declared(backend: Backend, config: KVCacheConfig) -> None:
    """Raise ``UnsupportedError`` with every reason why a backend cannot hold a cache."""
    reasons = undeclared(backend.capabilities(), config)
    if reasons:
        raise UnsupportedError(f"backend {backend.name!r} cannot store this cache:", {backend.name: tuple(reasons)})


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
