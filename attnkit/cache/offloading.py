"""Offloaded: a sequence out of its cache, in host memory or in a file; and how images get into caches.

Axes: ``B`` sequences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.cache.files import open_image, write_image
from attnkit.cache.image import Image, captured, slots_of
from attnkit.errors import CacheFileError

if TYPE_CHECKING:
    from attnkit.cache.base import KVCache


@dataclass(frozen=True)
class Offloaded:
    """A sequence that ``KVCache.offload`` took out of a cache; a value, which may be resumed as often as wanted.

    Attributes
    ----------
    length
        Position of its next token, the minimum over layers.
    nbytes
        Bytes of its keys and values, wherever they are.
    path
        The file that holds it, which ``load_cache`` reads too; ``None`` = host memory.
    image
        Gives its image, for the length of a ``with`` block.
    """

    length: int
    nbytes: int
    path: Path | None
    image: Callable[[], AbstractContextManager[Image]] = field(repr=False)


def offload(cache: KVCache, sequence: int, path: str | os.PathLike[str] | None) -> Offloaded:
    """Copy a sequence of a cache to the host, or into a file."""
    image = captured(cache, [sequence])
    length, nbytes = int(cache.next_position[sequence]), image.outline.nbytes
    if path is None:
        held = image.held()
        return Offloaded(length, nbytes, None, lambda: nullcontext(held))
    home = Path(path).absolute()
    return Offloaded(length, nbytes, home, partial(_reopened, home, write_image(home, image)))


@contextmanager
def _reopened(path: Path, digits: str) -> Iterator[Image]:
    """Give the image in the file of that hash."""
    with open_image(path) as (image, found):
        if found != digits:
            raise CacheFileError(f"{path}: it was written over since the sequence was offloaded")
        yield image


def join(cache: KVCache, image: Image) -> None:
    """Add the sequences of an image at the end of a cache; all or nothing.

    Raises
    ------
    ShapeError, CacheCapacityError
        If the cache cannot hold them.
    """
    image = image.converted(cache.config)
    outline = image.outline
    rows = range(cache.batch_size, cache.batch_size + outline.batch)
    counters = cache.counters.joined(outline.counters)
    with cache.joining(outline.rows, outline.longest):
        for layer, planes in enumerate(image):
            slots = slots_of(cache, outline.parts(layer), rows)
            for plane, tokens in zip(cache.pages[layer].planes, planes, strict=True):
                cache.backend.write(plane, slots, cache.backend.from_numpy(tokens)[None])
    cache.counters = counters
    cache.moved()
