"""From a file to a cache, without taking the file's word for how much memory that needs."""

from __future__ import annotations

import os
from collections.abc import Callable

from attnkit.cache.base import KVCache
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.files import open_image
from attnkit.cache.offloading import join
from attnkit.cache.outline import Outline
from attnkit.errors import CacheFileError, UnsupportedError

_IDLE = 1 << 30  # bytes of room that a file may ask for whatever it holds,
_TIMES = 16  # or so many times its own size
_BOOKKEEPING = 128  # bytes of the host for each sequence of a layer, and each page


def load(
    path: str | os.PathLike[str], config: KVCacheConfig | None, make: Callable[[KVCacheConfig], KVCache]
) -> KVCache:
    """Make a cache that holds what a file holds, of the file's configuration or another one."""
    with open_image(path) as (image, _):
        if config is None:
            config = image.outline.config
            _check_room(path, image.outline)
        cache = make(config)
        if not isinstance(cache, KVCache):
            raise UnsupportedError(f"the backend makes caches of its own, {type(cache).__name__}, and must load them")
        cache.select([])
        join(cache, image)
        return cache


def _check_room(path: str | os.PathLike[str], outline: Outline) -> None:
    """Refuse a file whose configuration asks for much more room than it has tokens for."""
    room, most = _room(outline), max(_IDLE, _TIMES * outline.nbytes)
    if room > most:
        raise CacheFileError(
            f"{os.fspath(path)}: its cache takes about {room} bytes for {outline.nbytes} bytes of tokens; if that is "
            "meant, pass config=KVCacheConfig(...) with the sizes that it shall have"
        )


def _room(outline: Outline) -> int:
    """Give about how many bytes a cache takes that holds what an outline says, and one token at least."""
    batch, longest = max(outline.config.batch_size, outline.batch, 1), int(outline.longest.max(initial=1))
    config = outline.config.model_copy(update={"batch_size": batch})
    if config.page_size is None:
        return config.bytes_for(longest) + _BOOKKEEPING * batch * config.num_layers
    pages = config.pool_pages(max(outline.pages, 1))
    return config.bytes_per_token * config.page_size * pages + _BOOKKEEPING * (batch * config.num_layers + pages)
