"""One layer of a cache of one's own: what it is given, what it gives back, and what it attends to.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.own_rows import Ragged, Row, coded, decoded
from attnkit_conformance.selftest.plain import Array

if TYPE_CHECKING:
    from attnkit_conformance.selftest.own_cache import OwnCache

NAME: Final = "own-caches"


class OwnLayer:
    """One layer."""

    def __init__(self, cache: OwnCache, number: int) -> None:
        self.cache, self.number = cache, number

    @property
    def rows(self) -> list[Row]:
        """The sequences of the layer."""
        return self.cache.rows[self.number]

    @property
    def stored(self) -> Array:
        """Tokens of each sequence, ``[B]``."""
        return np.array([row.count for row in self.rows], np.int64)

    next_position = stored  # nothing is given up

    @property
    def capacity(self) -> Array:
        """Tokens that each sequence has room for, ``[B]``."""
        return np.full(len(self.rows), self.cache.size, np.int64)

    def append(self, key: Array, value: Array, *, lengths: Any = None) -> None:
        """Add tokens ``[B, K, T, D]`` and ``[B, K, T, E]``, or the first ``lengths [B]`` of them."""
        taken = self.cache.checked(key, value, lengths)
        self.cache.reserve(self.stored + taken)
        planes = coded(self.cache.config, key, value)
        for b, row in enumerate(self.rows):
            row.take([plane[b] for plane in planes], int(taken[b]))
        if key.shape[2]:
            self.cache.ragged[self.number] = None if lengths is None else Ragged(key.shape[2], taken)

    def read(self) -> tuple[Array, Array]:
        """Give what is stored, ``[B, K, n, D]`` and ``[B, K, n, E]``, with zeros behind a shorter sequence."""
        return decoded(self.cache.config, [row.tokens() for row in self.rows])

    def attend(self, query: Array, **options: Any) -> Array:
        """Attend over what is stored."""
        key, value = self.read()
        return ak.attention(query, key, value, **self.implied(query, options), backend=self.cache.choice)

    def attend_with_lse(self, query: Array, **options: Any) -> ak.AttentionOutput:
        """Attend over what is stored, and give the log-sum-exp."""
        key, value = self.read()
        return ak.attention_with_lse(query, key, value, **self.implied(query, options), backend=self.cache.choice)

    def implied(self, query: Array, options: dict[str, Any]) -> dict[str, Any]:
        """Add the lengths that follow from what was appended; refuse a query of another element type."""
        config = self.cache.config
        if query.dtype.name != config.dtype:
            reason = ak.Reason("kv_dtype", "query", config.dtype, query.dtype.name)
            raise ak.UnsupportedError("the cache attends in its own type:", {NAME: (reason,)})
        ragged, stored = self.cache.ragged[self.number], self.stored
        if ragged and ragged.tokens == query.shape[2] and options.get("query_lengths") is None:
            options = {**options, "query_lengths": ragged.taken}
        return {**options, "kv_lengths": stored} if (stored != stored[:1]).any() else options
