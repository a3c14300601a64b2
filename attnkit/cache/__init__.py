"""KV caches: the bookkeeping of every layout; the bytes lie in a backend."""

from attnkit.cache.base import KVCache, Snapshot
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.contiguous import ContiguousCache
from attnkit.cache.layer import CacheLayer
from attnkit.cache.offloading import Offloaded
from attnkit.cache.paged import PagedCache
from attnkit.cache.pool import PagePool
from attnkit.cache.ring import RingCache

__all__ = [
    "CacheLayer",
    "ContiguousCache",
    "KVCache",
    "KVCacheConfig",
    "Offloaded",
    "PagePool",
    "PagedCache",
    "RingCache",
    "Snapshot",
]
