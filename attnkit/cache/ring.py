"""RingCache: the last tokens of a sequence, and its first few for ever; positions go on counting.

Before an append a sequence of ``W - 1 + T`` tokens gives up all but the last ``W - 1``, so that every one of the ``T``
tokens of the append still finds the ``W - 1`` before it. The new tokens go into slots that no held token occupies:
a ring has room for one more append than it may hold, and a failed append has overwritten nothing.

Axes: ``B`` sequences, ``L`` layers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnkit.backend import AttentionOutput
from attnkit.cache.attending import attend_table, stored_table
from attnkit.cache.layout import Grain
from attnkit.cache.pieces import PieceCache, Pieces
from attnkit.cache.pinning import attend_pinned
from attnkit.call import Options
from attnkit.errors import CacheCapacityError, ShapeError
from attnkit.masks import Mask
from attnkit.pages import Array, IntArray, Span


class RingCache(PieceCache):
    """A sequence lies in its page: pinned tokens first, then a ring of ``config.ring_size`` slots."""

    @property
    def pinned(self) -> int:
        """Tokens at the beginning of each sequence that are never given up."""
        return self.config.pinned or 0

    @property
    def behind(self) -> int:
        """Tokens that a query sees before itself, ``window - 1``."""
        return (self.config.window or 1) - 1

    @property
    def max_append(self) -> int:
        """Most tokens of one append."""
        return self.config.max_append or 0

    @property
    def capacity(self) -> IntArray:
        """Most tokens that each sequence ever holds, ``[B]``."""
        return np.full(self.batch_size, self.pinned + self.behind + self.max_append, np.int64)

    def places(self, start: int, stop: int) -> Iterator[Span]:
        """Give the slots of positions ``start .. stop``, at most a ring's, counted from the start of a page."""
        pinned, size = self.pinned, self.config.ring_size
        if start < pinned:
            yield start, min(stop, pinned)
            start = pinned
        if start < stop:
            first, count = (start - pinned) % size, stop - start
            yield pinned + first, pinned + min(first + count, size)
            yield pinned, pinned + max(first + count - size, 0)

    def grain(self) -> Grain | None:
        """A ring wraps anywhere; one with pinned tokens is attended in two parts, the cut between them moves."""
        return None if self.pinned else Grain(1, self.behind + self.max_append)

    def room_for(self, start: IntArray, taken: IntArray) -> Pieces:
        """Give the storage; refuse more tokens than ``max_append``."""
        most = int(taken.max(initial=0))
        if most > self.max_append:
            raise CacheCapacityError(
                f"append needs room for {most} tokens at a time, the ring takes max_append = {self.max_append}; "
                "append them in several calls, or make the cache with a larger max_append"
            )
        return super().room_for(start, taken)

    def gone_after(self, layer: int, taken: IntArray) -> IntArray:
        """Give how many tokens each sequence of a layer has given up, ``[B]``, once it took ``taken [B]`` more."""
        gone, count = self.counters.gone[layer], self.counters.next[layer]
        return np.asarray(np.where(taken > 0, np.maximum(gone, count - self.pinned - self.behind), gone))

    def gone_within(self, name: str, kept: IntArray) -> IntArray:
        """Give how many tokens each layer has given up, ``[L, B]``, of the first ``kept [B]``; refuse what is lost."""
        gone = np.where(kept <= self.pinned, 0, self.counters.gone)
        lost = (gone > 0) & (kept - self.pinned - gone < self.behind)
        if lost.any():
            least = (self.counters.gone.max(axis=0) + self.pinned + self.behind).tolist()
            raise ShapeError(
                f"{name} must leave each sequence the {self.behind} tokens that its next query sees; the ring has "
                f"given up what comes before, so it can go back to position {least} at the least, or to {self.pinned} "
                f"or less, not to {kept.tolist()}; take a snapshot() before what may have to be undone"
            )
        return gone

    def attend(self, layer: int, query: Array, options: Options, lse: bool) -> AttentionOutput:
        """Attend over all that a layer holds; pinned tokens are seen outside of any window."""
        gone = self.counters.gone[layer]
        windowed = isinstance(options.mask, Mask) and options.mask.structure.left is not None
        if self.pinned and (windowed or gone.any()):
            return attend_pinned(self, layer, query, options, lse)
        return attend_table(self, layer, stored_table(self, layer), gone, query, options, lse)
