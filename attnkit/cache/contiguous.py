"""ContiguousCache: each sequence is one page, fixed or growing."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from attnkit.cache.base import KVCache
from attnkit.errors import CacheCapacityError
from attnkit.pages import IntArray, Pages, PageTable


class ContiguousCache(KVCache):
    """Sequence ``b`` lies in page ``b`` from its first slot on.

    With ``max_length`` everything is allocated at once; without, storage grows by ``config.capacity_for``, for all
    layers at the first layer's append, so that a token is copied O(1) times on average.
    """

    @property
    def capacity(self) -> IntArray:
        """Tokens that each sequence has room for, ``[B]``; a growing cache makes more when needed."""
        return np.full(self.config.batch_size, self.pages[0].page_size, np.int64)

    def initial_pages(self) -> list[Pages]:
        """Give storage for ``max_length`` tokens, or for none."""
        return self._allocate(self.config.max_length or 0)

    def reserve(self, needed: IntArray) -> list[Pages]:
        """Give storage with room for ``needed`` tokens of each sequence."""
        longest, capacity = int(needed.max()), self.pages[0].page_size
        if longest <= capacity:
            return self.pages
        if self.config.max_length is not None:
            raise CacheCapacityError(
                f"append needs room for {longest} tokens, the cache holds max_length = {capacity}; "
                "truncate or drop tokens, or make the cache with a larger max_length, or with None to let it grow"
            )
        return self._grown(self.config.capacity_for(longest))

    def slots(self, pages: Pages, start: IntArray, count: int) -> IntArray:
        """Give the slots ``[B, count]`` of tokens ``start .. start + count`` of each sequence."""
        first = np.arange(self.config.batch_size) * pages.page_size + start
        return first[:, None] + np.arange(count)[None, :]

    def table(self) -> PageTable:
        """Give the page table: page ``b`` for sequence ``b``."""
        return _identity(self.config.batch_size)

    def _allocate(self, capacity: int) -> list[Pages]:
        return [self.allocate(self.config.batch_size, capacity) for _ in range(self.config.num_layers)]

    def _grown(self, capacity: int) -> list[Pages]:
        grown = self._allocate(capacity)
        for layer, old, new in zip(self, self.pages, grown, strict=True):
            stored = layer.stored
            key, value = self.backend.gather(old, self.table().slots(stored, old.page_size))
            self.backend.write(new, self.table().slots(stored, capacity), key, value)
        return grown


@lru_cache(maxsize=64)
def _identity(batch: int) -> PageTable:
    return PageTable(np.arange(batch)[:, None], np.zeros(batch, np.int64))
