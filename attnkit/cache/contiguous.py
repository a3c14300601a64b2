"""ContiguousCache: a sequence is one piece, fixed or growing."""

from __future__ import annotations

import numpy as np

from attnkit.cache.layout import Grain
from attnkit.cache.pieces import PieceCache, Pieces
from attnkit.errors import CacheCapacityError
from attnkit.pages import IntArray


class ContiguousCache(PieceCache):
    """A sequence lies in its page from the first slot on.

    With ``max_length`` everything is allocated at once; without, storage grows by ``config.capacity_for``, for all
    layers at the first layer's append, so that a token is copied O(1) times on average.
    """

    @property
    def capacity(self) -> IntArray:
        """Tokens that each sequence has room for, ``[B]``; a growing cache makes more when needed."""
        return np.full(self.batch_size, self.pieces.size, np.int64)

    def grain(self) -> Grain | None:
        """A sequence is one page; storage is another one once it grows."""
        return Grain(self.pieces.size, self.pieces.size)

    def room_for(self, start: IntArray, taken: IntArray) -> Pieces:
        """Give storage with room for ``taken [B]`` tokens from ``start [B]`` on: the present one, or a larger copy."""
        longest, capacity = int((start + taken).max(initial=0)), self.pieces.size
        if longest <= capacity:
            return self.pieces
        if self.config.max_length is not None:
            raise CacheCapacityError(
                f"append needs room for {longest} tokens, the cache holds max_length = {capacity}; "
                "truncate or drop tokens, or make the cache with a larger max_length, or with None to let it grow"
            )
        return self.copied(range(self.batch_size), self.config.capacity_for(longest))
