"""CacheLayer: what one attention layer appends to and attends over.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` key head size,
``E`` value head size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit.arrays import library_of
from attnkit.backend import AttentionOutput
from attnkit.cache.attending import attend_layer, check_tokens, stored_table
from attnkit.cache.counters import Ragged
from attnkit.cache.locking import locked
from attnkit.call import Options
from attnkit.checks import host_lengths
from attnkit.conversion import convert
from attnkit.masks import Mask
from attnkit.pages import IntArray, SlotTable

if TYPE_CHECKING:
    from attnkit.cache.layout import Layout

Array = Any


@dataclass(slots=True, unsafe_hash=True)  # neither field ever changes
class CacheLayer:
    """One layer of a ``KVCache``; ``cache[layer]`` gives it."""

    _cache: Layout
    number: int

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of the cache."""
        return self._cache.lock

    @property
    def next_position(self) -> IntArray:
        """Position of the next token, ``[B]``: tokens appended minus forgotten."""
        return np.array(self._cache.counters.next[self.number])

    @property
    def stored(self) -> IntArray:
        """Tokens held now, ``[B]``."""
        return np.array(self._cache.counters.stored[self.number])

    @property
    def capacity(self) -> IntArray:
        """Tokens that each sequence has room for, ``[B]``."""
        return self._cache.capacity

    @locked
    def append(self, key: Array, value: Array, *, lengths: Array | int | None = None) -> None:
        """Add tokens to every sequence, converted by value to the cache's dtype; the arrays are copied.

        Parameters
        ----------
        key, value
            ``[B, K, T, D]`` and ``[B, K, T, E]``, any of the float types and of any library that can be converted to
            the backend's. Gradients do not follow them into the cache.
        lengths
            How many of the ``T`` tokens each sequence takes, ``[B]`` integers or one; the rest is padding, skipped.

        Raises
        ------
        ShapeError, DTypeError
            If an argument does not fit.
        CacheCapacityError
            If a sequence would exceed the capacity. In each case the cache stays as it was.
        """
        cache = self._cache
        check_tokens(cache, key, value)
        key, value = (convert(array, library_of(cache.pages[self.number].planes[0])) for array in (key, value))
        tokens = int(key.shape[2])
        taken = _taken(lengths, cache.batch_size, tokens)
        if not tokens:
            return
        with cache.reserve(self.number, taken) as room:
            slots, pages = room.table.slots, room.pages[self.number]
            longest = slots.shape[1]
            pages.key.write(cache.backend, slots, key[:, :, :longest])
            pages.value.write(cache.backend, slots, value[:, :, :longest])
        ragged = None if lengths is None or not len(taken) else Ragged(tokens, taken)
        cache.counters = cache.counters.after_append(self.number, taken, cache.gone_after(self.number, taken), ragged)

    @locked
    def attend(
        self,
        query: Array,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        bias: Array | None = None,
        alibi: Array | None = None,
        sinks: Array | None = None,
        query_lengths: Array | int | None = None,
        query_offset: Array | int | None = None,
    ) -> Array:
        """Compute attention of new queries over everything the layer holds; never changes the cache.

        Parameters
        ----------
        query
            ``[B, H, T, D]``. By default the last query stands on the last stored token.
        mask, scale, softcap, bias, alibi, sinks, query_offset
            As in ``attnkit.attention``, with ``S = max(stored)``.
        query_lengths
            As there; after an ``append`` with lengths, a query of the same ``T`` takes them from it.

        Returns
        -------
        ``[B, H, T, E]`` in the query's dtype.

        Raises
        ------
        ShapeError, DTypeError, UnsupportedError
            As in ``attnkit.attention``.
        """
        options = Options(mask, scale, softcap, bias, alibi, sinks, query_lengths, None, query_offset)
        return attend_layer(self._cache, self.number, query, options, lse=False).output

    @locked
    def attend_with_lse(
        self,
        query: Array,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        bias: Array | None = None,
        alibi: Array | None = None,
        sinks: Array | None = None,
        query_lengths: Array | int | None = None,
        query_offset: Array | int | None = None,
    ) -> AttentionOutput:
        """Compute what ``attend`` does, and the log-sum-exp ``[B, H, T]``."""
        options = Options(mask, scale, softcap, bias, alibi, sinks, query_lengths, None, query_offset)
        return attend_layer(self._cache, self.number, query, options, lse=True)

    @locked
    def read(self) -> tuple[Array, Array]:
        """Copy out what the layer holds: key ``[B, K, n, D]``, value ``[B, K, n, E]`` with ``n = max(stored)``.

        Past the end of a shorter sequence stand zeros.
        """
        pages, slots = self._cache.pages[self.number], self.table().slots
        return pages.key.read(self._cache.backend, slots), pages.value.read(self._cache.backend, slots)

    def table(self) -> SlotTable:
        """Give the slots of all tokens that the layer holds."""
        return stored_table(self._cache, self.number)


def _taken(numbers: Array | int | None, batch: int, tokens: int) -> IntArray:
    if numbers is None:
        return np.full(batch, tokens, np.int64)
    return host_lengths("lengths", numbers, batch, tokens, "T")
