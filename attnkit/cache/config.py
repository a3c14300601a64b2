"""KVCacheConfig: what a cache is made from, and what it will cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from attnkit.codec import Codec
from attnkit.config import Config, DType, filled_from
from attnkit.errors import ShapeError
from attnkit.structure import FARTHEST

Layout = Literal["contiguous", "ring", "paged"]
LAYOUTS: tuple[Layout, ...] = ("contiguous", "ring", "paged")

# The fields that only one layout has, with their defaults there.
_OWN: dict[str, dict[str, Any]] = {
    "contiguous": {"max_length": None},
    "ring": {"window": None, "max_append": 64, "pinned": 0},
    "paged": {"max_length": None, "page_size": 16, "num_pages": None},
}
_FIELDS = ("max_length", "window", "max_append", "pinned", "page_size", "num_pages")


class KVCacheConfig(Config):
    """A KV cache.

    Attributes
    ----------
    num_layers, batch_size
        Layers, and sequences to begin with.
    num_kv_heads, head_dim, value_dim
        ``K``, ``D``, ``E``; ``value_dim=None`` means ``D``.
    dtype
        Element type of keys and values as they are read back.
    key_codec, value_codec
        How they are stored: ``"native"``, ``"int8"``, ``"int4"``, ``"fp8"``, or a ``Codec``, such as ``"int4/32"``
        where 32 features share a scale. ``codec`` gives both.
    layout
        ``"contiguous"``: a sequence is one piece. ``"ring"``: the last tokens alone. ``"paged"``: a sequence is pages.
    max_length
        Contiguous and paged: tokens a sequence may hold, allocated at once; ``None`` = grows.
    window, max_append, pinned
        Ring: before every append, of up to ``max_append`` tokens, a sequence keeps its last ``window - 1`` tokens,
        and its first ``pinned`` ones for ever.
    page_size, num_pages
        Paged: tokens in a page, and pages in the pool; without ``num_pages`` the pool holds ``max_length`` tokens of
        every sequence, or grows.
    """

    num_layers: PositiveInt = 1
    batch_size: NonNegativeInt = 1
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    value_dim: PositiveInt = None  # type: ignore[assignment]  # filled in from head_dim below
    dtype: DType = "float32"
    key_codec: Codec = Codec()
    value_codec: Codec = Codec()
    layout: Layout = "contiguous"
    max_length: PositiveInt | None = None
    window: PositiveInt | None = None
    max_append: PositiveInt | None = None
    pinned: NonNegativeInt | None = None
    page_size: PositiveInt | None = None
    num_pages: PositiveInt | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        filled = filled_from(data, value_dim="head_dim")
        codec = filled.pop("codec", None)
        for name in ("key_codec", "value_codec") if codec is not None else ():
            filled.setdefault(name, codec)
        for name, value in _OWN.get(filled.get("layout", "contiguous"), {}).items():
            if filled.get(name) is None:
                filled[name] = value
        return filled

    @model_validator(mode="after")
    def _fit(self) -> Self:
        foreign = [name for name in _FIELDS if name not in _OWN[self.layout] and getattr(self, name) is not None]
        if foreign:
            raise ValueError(f"{', '.join(foreign)} must not be given for layout {self.layout!r}")
        if self.layout == "ring" and self.window is None:
            raise ValueError("window must be given for layout 'ring': the tokens that a query sees, itself included")
        self.key_codec.check("key_codec", self.head_dim)
        self.value_codec.check("value_codec", self.value_dim)
        return self

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence takes over all layers."""
        key = self.key_codec.bytes_per_token(self.head_dim, self.dtype)
        value = self.value_codec.bytes_per_token(self.value_dim, self.dtype)
        return self.num_layers * self.num_kv_heads * (key + value)

    @property
    def most_tokens(self) -> int | None:
        """The longest context of ``batch_size`` sequences at once; ``None`` = any: the cache grows, or is a ring."""
        if self.num_pages is None:
            return self.max_length
        room = self.num_pages // max(self.batch_size, 1) * self._page
        return room if self.max_length is None else min(room, self.max_length)

    @property
    def ring_size(self) -> int:
        """Slots of a ring behind its pinned ones: what it may hold, and room for one more append beside it."""
        return (self.window or 1) - 1 + 2 * (self.max_append or 0)

    def capacity_for(self, length: int) -> int:
        """Give the slots allocated for each sequence once all have held ``length`` tokens.

        Fixed caches hold ``max_length`` from the start; growing ones go up in quarters of a power of two, at least 64
        tokens, so that at most a fifth lies idle and appending stays O(1) a token. Paged: the pool's slots, divided by
        the sequences, where nothing is shared. A ring never grows.
        """
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= FARTHEST:
            raise ShapeError(f"length must be an integer in 0..2**53, got {length!r}")
        if self.layout == "ring":
            return (self.pinned or 0) + self.ring_size
        if self.layout == "paged":
            return self.pool_pages(self.batch_size * self._pages(length)) * self._page // max(self.batch_size, 1)
        return self.max_length if self.max_length is not None else round_up(length, _granule(length))

    def pool_pages(self, needed: int) -> int:
        """Give the pages that a pool has once ``needed`` of them have been in use: all from the start, or a growth."""
        if self.num_pages is not None:
            return self.num_pages
        if self.max_length is not None:
            return self.batch_size * self._pages(self.max_length)
        return round_up(needed, max(1, 1 << max(needed.bit_length() - 3, 0)))

    def bytes_for(self, length: int) -> int:
        """Give the bytes allocated for all sequences once all have held ``length`` tokens.

        For a contiguous cache it is enough that the longest has.
        """
        if self.layout == "paged":
            return self.bytes_per_token * self._page * self.pool_pages(self.batch_size * self._pages(length))
        return self.bytes_per_token * self.batch_size * self.capacity_for(length)

    def longest_for(self, memory: int) -> int:
        """Give the longest context, in tokens of each sequence, whose allocation fits into ``memory`` bytes.

        A ring that fits takes any length: ``2**53``.
        """
        low, high = 0, max(memory, 0) // max(self.bytes_per_token * self.batch_size, 1)
        if self.layout == "ring" or self.most_tokens is not None:
            return (FARTHEST if self.most_tokens is None else self.most_tokens) if self.bytes_for(0) <= memory else 0
        while low < high:  # the allocation never shrinks as the length grows
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes_for(middle) <= memory else (low, middle - 1)
        return low

    @property
    def _page(self) -> int:
        return self.page_size or 1

    def _pages(self, length: int) -> int:
        return -(-length // self._page)


def round_up(number: int, granule: int) -> int:
    """Give the least multiple of ``granule`` that is not below ``number``."""
    return -(-number // granule) * granule


def _granule(length: int) -> int:
    return max(64, 1 << max(length.bit_length() - 3, 0))
