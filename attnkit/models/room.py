"""Whether a text can be held: by the model's context, and by a cache however empty it is."""

from __future__ import annotations

import math

from attnkit.cache.base import KVCache
from attnkit.cache.paged import PagedCache
from attnkit.cache.pool import PagePool
from attnkit.errors import CacheCapacityError, ShapeError
from attnkit.models.llama import Llama


def check_room(model: Llama, cache: KVCache | None, prompt: int, max_tokens: int) -> None:
    """Make sure that a prompt and ``max_tokens`` more can be held.

    Raises
    ------
    ShapeError
        If a number is below 1, or the model's context is shorter.
    CacheCapacityError
        If the cache can never hold so much.
    """
    if prompt < 1:
        raise ShapeError("prompt_ids must hold at least one token, got none")
    if max_tokens < 1:
        raise ShapeError(f"max_tokens must be >= 1, got {max_tokens}")
    if prompt + max_tokens > model.config.max_positions:
        raise ShapeError(
            f"{prompt} tokens of prompt and max_tokens={max_tokens} exceed the model's context of "
            f"{model.config.max_positions}"
        )
    needed, most = stored_in_all(prompt, max_tokens), math.inf if cache is None else longest_text(cache)
    if needed > most:
        raise CacheCapacityError(
            f"{prompt} tokens of prompt and max_tokens={max_tokens} store {needed} tokens, the cache holds {most} of "
            "one sequence at most; ask for fewer, or make the cache with a larger max_length or more num_pages"
        )


def stored_in_all(prompt: int, max_tokens: int) -> int:
    """Give how many tokens a text stores: the last new one is never computed with."""
    return prompt + max_tokens - 1


def longest_text(cache: KVCache) -> float:
    """Give how many tokens a sequence can ever take, if it is the only one."""
    limit = math.inf if cache.config.max_length is None else cache.config.max_length
    if not isinstance(cache, PagedCache):
        return limit
    pages = page_limit(cache.pool)
    return limit if pages is None else min(limit, pages * cache.pool.page_size)


def page_limit(pool: PagePool) -> int | None:
    """Give how many pages a pool has from the start; ``None`` where it grows."""
    return None if pool.grows else pool.config.pool_pages(0)
