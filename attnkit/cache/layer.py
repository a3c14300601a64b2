"""CacheLayer: what one attention layer appends to and attends over.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` key head size,
``E`` value head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit.arrays import DTYPES, dtype_name, library_of
from attnkit.backend import AttentionOutput
from attnkit.call import Options, describe_call
from attnkit.checks import check_array, check_device, check_home, host_lengths
from attnkit.conversion import can_convert, convert
from attnkit.errors import DTypeError, ShapeError
from attnkit.masks import Mask
from attnkit.pages import IntArray
from attnkit.selection import select
from attnkit.tracing import record

if TYPE_CHECKING:
    from attnkit.cache.base import KVCache

Array = Any


class StoredArray(NamedTuple):
    """Shape and element type of the keys or values that a layer holds, as a call sees them."""

    shape: tuple[int, ...]
    dtype: str


class CacheLayer:
    """One layer of a ``KVCache``; ``cache[layer]`` gives it."""

    def __init__(self, cache: KVCache, number: int, counts: IntArray) -> None:
        self._cache = cache
        self._number = number
        self._counts = counts
        self._ragged: tuple[int, IntArray] | None = None

    @property
    def next_position(self) -> IntArray:
        """Position of the next token, ``[B]``: tokens appended minus forgotten."""
        return self._counts.copy()

    @property
    def stored(self) -> IntArray:
        """Tokens held now, ``[B]``."""
        return self._counts.copy()

    @property
    def capacity(self) -> IntArray:
        """Tokens that each sequence has room for, ``[B]``."""
        return self._cache.capacity

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
        self._check_tokens(key, value)
        key, value = self._own(key), self._own(value)
        tokens = int(key.shape[2])
        taken = _taken(lengths, self._cache.config.batch_size, tokens)
        if not tokens:
            return
        cache = self._cache
        pages = cache.reserve(self._counts + taken)
        slots = cache.slots(pages[self._number], self._counts, tokens)
        if lengths is not None:
            slots = np.where(np.arange(tokens)[None, :] < taken[:, None], slots, -1)
        cache.backend.write(pages[self._number], slots, key, value)
        cache.pages = pages
        self._counts += taken
        self._ragged = None if lengths is None else (tokens, taken)

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
        return self._attend(query, options, lse=False).output

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
        return self._attend(query, options, lse=True)

    def read(self) -> tuple[Array, Array]:
        """Copy out what the layer holds: key ``[B, K, n, D]``, value ``[B, K, n, E]`` with ``n = max(stored)``.

        Past the end of a shorter sequence stand zeros.
        """
        cache = self._cache
        pages = cache.pages[self._number]
        return cache.backend.gather(pages, cache.table().slots(self._counts, pages.page_size))

    def reorder_ragged(self, source: IntArray) -> None:
        """Let the query lengths that the next ``attend`` takes move along with their sequences."""
        if self._ragged is not None:
            self._ragged = self._ragged[0], self._ragged[1][source]

    def forget_ragged(self) -> None:
        """Let the next ``attend`` take its query lengths from nowhere; the tokens they spoke of have moved."""
        self._ragged = None

    def _attend(self, query: Array, options: Options, *, lse: bool) -> AttentionOutput:
        cache = self._cache
        check_array("query", query)
        if len(query.shape) != 4 or query.shape[0] != len(self._counts):
            raise ShapeError(f"query must be [B, H, T, D] with B = {len(self._counts)}, got {list(query.shape)}")
        options = options._replace(**self._implied(query, options))
        key, value = self._stored_arrays(int(self._counts.max()))
        request, operands = describe_call(query, key, value, options, lse, cached=True)
        selection = select(request, cache.choice)
        check_device("query", query, cache.pages[self._number].key, "the cache")
        record(request, selection, cache.choice)
        return cache.backend.attend_pages(query, cache.pages[self._number], cache.table(), operands, selection.plan)

    def _implied(self, query: Array, options: Options) -> dict[str, Array]:
        """Give the lengths that follow from the state of the cache."""
        implied: dict[str, Array] = {}
        if (self._counts != self._counts[0]).any():
            implied["kv_lengths"] = self._counts.copy()
        if options.query_lengths is None and self._ragged is not None and self._ragged[0] == query.shape[2]:
            implied["query_lengths"] = self._ragged[1]
        return implied

    def _stored_arrays(self, length: int) -> tuple[StoredArray, StoredArray]:
        config = self._cache.config
        head = (config.batch_size, config.num_kv_heads, length)
        return StoredArray((*head, config.head_dim), config.dtype), StoredArray((*head, config.value_dim), config.dtype)

    def _check_tokens(self, key: Array, value: Array) -> None:
        check_array("key", key)
        check_array("value", value)
        config = self._cache.config
        tokens = key.shape[2] if len(key.shape) == 4 else "T"
        head = (config.batch_size, config.num_kv_heads, tokens)
        if tuple(key.shape) != (*head, config.head_dim) or tuple(value.shape) != (*head, config.value_dim):
            raise ShapeError(
                f"key, value must be [B, K, T, D], [B, K, T, E] with B = {head[0]}, K = {head[1]}, "
                f"D = {config.head_dim}, E = {config.value_dim}, got {list(key.shape)}, {list(value.shape)}"
            )
        stored = self._cache.pages[self._number].key
        for name, array in (("key", key), ("value", value)):
            if dtype_name(array.dtype) not in DTYPES:
                raise DTypeError(f"{name} must be one of {', '.join(DTYPES)}, got {array.dtype}")
            if not can_convert(array):
                check_home(name, array, stored, "the cache")
            check_device(name, array, stored, "the cache")

    def _own(self, array: Array) -> Array:
        """Give an array as one of the library that the cache lies in."""
        return convert(array, library_of(self._cache.pages[self._number].key))


def _taken(numbers: Array | int | None, batch: int, tokens: int) -> IntArray:
    if numbers is None:
        return np.full(batch, tokens, np.int64)
    return host_lengths("lengths", numbers, batch, tokens, "T")
