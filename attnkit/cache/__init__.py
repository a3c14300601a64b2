"""KV caches: the bookkeeping of every layout; the bytes lie in a backend."""

from attnkit.cache.base import KVCache
from attnkit.cache.contiguous import ContiguousCache
from attnkit.cache.layer import CacheLayer

__all__ = ["CacheLayer", "ContiguousCache", "KVCache"]
