"""From the outline of an image to that of the same sequences in a cache of another configuration.

Axes: ``L`` layers, ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

import numpy as np

from attnkit.cache.config import KVCacheConfig
from attnkit.cache.counters import Counters
from attnkit.cache.outline import Outline
from attnkit.errors import CacheCapacityError, ShapeError
from attnkit.pages import IntArray

_SHAPE = ("num_layers", "num_kv_heads", "head_dim", "value_dim")


def retargeted(outline: Outline, config: KVCacheConfig) -> Outline:
    """Give the outline of the same sequences in a cache of another configuration."""
    unlike = [name for name in _SHAPE if getattr(config, name) != getattr(outline.config, name)]
    if unlike:
        told = ", ".join(f"{name} {getattr(config, name)} and not {getattr(outline.config, name)}" for name in unlike)
        raise ShapeError(f"config must be of the shape of what was saved, got one with {told}")
    _check_length(outline, config)
    before = outline.counters
    counters = Counters(before.next, _gone(outline.config, config, before), before.ragged)
    return Outline.of(config, counters, _rows(outline, config))


def _rows(outline: Outline, config: KVCacheConfig) -> Sequence[Sequence[int]]:
    """Give the pages of each sequence; where these are not what they were, none is shared."""
    if config.page_size == outline.config.page_size:
        return outline.rows
    numbers, size = count(), config.page_size
    pages = [1 if size is None else -(-n // size) for n in outline.longest.tolist()]
    return [tuple(islice(numbers, number)) for number in pages]


def _check_length(outline: Outline, config: KVCacheConfig) -> None:
    longest, most = int(outline.longest.max(initial=0)), config.max_length
    if most is not None and longest > most:
        raise CacheCapacityError(
            f"what was saved needs room for {longest} tokens, a sequence of the cache holds max_length = {most}; "
            "take a cache with a larger max_length, or with None to let it grow"
        )


def _gone(old: KVCacheConfig, new: KVCacheConfig, counters: Counters) -> IntArray:
    """Give how many tokens each sequence has given up in another cache, ``[L, B]``; refuse what it would lack."""
    before, pinned, missed = counters.gone, new.pinned or 0, (old.pinned or 0) + counters.gone
    if new.layout != "ring":
        if before.any():
            raise ShapeError(
                f"what was saved is a ring that has given up tokens, up to {before.max()} of a sequence; it goes into "
                f"a ring alone, got layout {new.layout!r}"
            )
        return before
    behind = (new.window or 1) - 1
    gone = np.maximum(counters.next - pinned - behind - (new.max_append or 0), np.where(before > 0, missed - pinned, 0))
    gone = np.maximum(gone, 0)
    lacking = (before > 0) & ((pinned > (old.pinned or 0)) | (counters.next - gone < pinned + behind))
    if lacking.any():
        raise ShapeError(
            f"what was saved is a ring of window {old.window} and {old.pinned} pinned tokens that has given up others; "
            f"it goes into a ring of no larger window and with no more pinned, got {new.window} and {new.pinned}"
        )
    return gone
