"""From a configuration to the cache of its layout, or to the backend's own."""

from __future__ import annotations

from collections.abc import Callable

from attnkit.backend import Backend
from attnkit.cache.base import KVCache
from attnkit.cache.config import KVCacheConfig, Layout
from attnkit.cache.contiguous import ContiguousCache
from attnkit.cache.paged import PagedCache
from attnkit.cache.pool import PagePool
from attnkit.cache.ring import RingCache
from attnkit.cache.storage import checked_backend
from attnkit.errors import ShapeError

_KINDS: dict[Layout, Callable[[KVCacheConfig, str | Backend], KVCache]] = {
    "contiguous": ContiguousCache,
    "ring": RingCache,
    "paged": PagedCache,
}


def new_cache(config: KVCacheConfig, choice: str | Backend, pool: PagePool | None = None) -> KVCache:
    """Make an empty cache on one backend.

    Raises
    ------
    DTypeError, ShapeError, UnsupportedError
        If the configuration is none, does not go with the pool, or is nothing that the backend can hold.
    """
    backend = checked_backend(config, choice)
    if pool is not None:
        if config.layout != "paged":
            raise ShapeError(f"pool goes with layout 'paged', got {config.layout!r}")
        return PagedCache(config, choice, pool)
    own = backend.make_cache(config, choice)
    if own is not None:
        return own
    return _KINDS[config.layout](config, choice)
