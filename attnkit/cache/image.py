"""Image: sequences of a cache on the host, whatever held them: a file, another backend, this process's memory.

Bytes are moved as they are; codes are decoded only for a cache that stores tokens in another way.

Axes: ``K`` key/value heads, ``N`` tokens of an image, ``F`` features of a plane, ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit.cache.outline import Outline, Part
from attnkit.cache.retargeting import retargeted
from attnkit.codec import Codec
from attnkit.pages import IntArray, SlotTable, melted

if TYPE_CHECKING:
    from attnkit.cache.base import KVCache
    from attnkit.cache.config import KVCacheConfig

HostArray = np.ndarray[Any, Any]
HostPlanes = tuple[HostArray, ...]


@dataclass(frozen=True)
class Image:
    """Sequences of a cache, with all that is held of them and nothing that is forgotten.

    Attributes
    ----------
    outline
        Which sequences, and where in the planes their tokens lie.
    layer
        Gives the planes of a layer, ``[K, N, F]`` each, those of the keys first; made when asked for, so that no second
        copy of a whole cache need be in memory.
    """

    outline: Outline
    layer: Callable[[int], HostPlanes]

    def __iter__(self) -> Iterator[HostPlanes]:
        return map(self.layer, range(self.outline.config.num_layers))

    def held(self) -> Image:
        """Give the same image with all planes in memory."""
        return Image(self.outline, tuple(self).__getitem__)

    def converted(self, config: KVCacheConfig) -> Image:
        """Give the image of a cache of another configuration, of the same shape, that holds the same tokens.

        A ring takes the last tokens that it may hold. Tokens are decoded and stored anew only where element type or
        codec differ.

        Raises
        ------
        ShapeError
            If the shape is another, or tokens that the other cache would need were given up.
        CacheCapacityError
            If it cannot hold so many.
        """
        if config == self.outline.config:
            return self
        source, target = self.outline, retargeted(self.outline, config)

        def layer(number: int) -> HostPlanes:
            planes, parts = self.layer(number), target.parts(number)
            if parts != source.parts(number):
                places = source.indices(number, parts)
                planes = tuple(plane[:, places] for plane in planes)
            return _recoded(planes, source.config, config)

        return Image(target, layer)


def captured(cache: KVCache, sequences: Sequence[int]) -> Image:
    """Give the image of some sequences of a cache, to be read before the cache changes."""
    rows = cache.rows
    outline = Outline.of(cache.config, cache.counters.arranged(sequences), [rows[sequence] for sequence in sequences])

    def layer(number: int) -> HostPlanes:
        slots = slots_of(cache, outline.parts(number), sequences)
        backend = cache.backend
        return tuple(backend.to_numpy(backend.gather(plane, slots)[0]) for plane in cache.pages[number].planes)

    return Image(outline, layer)


def slots_of(cache: KVCache, parts: Sequence[Part], sequences: Sequence[int]) -> IntArray:
    """Give the slots of parts in a cache, ``[1, N]``; sequence ``i`` of the parts is ``sequences[i]`` there."""
    spans = (span for part in parts for span in cache.spans(sequences[part.sequence], part.start, part.stop))
    return SlotTable((melted(spans),)).slots


def _recoded(planes: HostPlanes, old: KVCacheConfig, new: KVCacheConfig) -> HostPlanes:
    """Turn planes of one configuration into those of another."""
    split = len(old.key_codec.planes(old.head_dim, old.dtype))
    return (
        *_recoded_half(planes[:split], (old.key_codec, old.dtype), (new.key_codec, new.dtype), old.head_dim),
        *_recoded_half(planes[split:], (old.value_codec, old.dtype), (new.value_codec, new.dtype), old.value_dim),
    )


def _recoded_half(planes: HostPlanes, old: tuple[Codec, str], new: tuple[Codec, str], size: int) -> HostPlanes:
    same_bits = old[0] == new[0] and (old[1] == new[1] or old[0].kind != "native")
    if same_bits:  # the type that decoding gives is not stored
        return planes
    return new[0].encode(old[0].decode(planes, size, old[1]), new[1])
