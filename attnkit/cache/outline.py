"""Outline: which sequences an image of a cache holds, and where in the image their tokens lie.

An image is dense: of each layer it has the tokens that are held and nothing else, page after page, in the order in
which the sequences name them. The page of a contiguous cache or a ring is a whole sequence; pages of a paged cache that
several sequences share are there once. All of it follows from the configuration, the counters and the rows of pages.

Axes: ``L`` layers, ``B`` sequences, ``K`` key/value heads, ``N`` tokens of an image, ``F`` features of a plane.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from attnkit.arrays import numpy_dtype
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.counters import Counters, Ragged
from attnkit.config import Config
from attnkit.pages import IntArray
from attnkit.structure import FARTHEST

SCHEMA: Literal[1] = 1
Count = Annotated[int, Field(ge=0, le=FARTHEST)]
Counts = tuple[Count, ...]


class Part(NamedTuple):
    """Neighbours in an image: the tokens at positions ``start .. stop`` of a sequence."""

    sequence: int
    start: int
    stop: int


class Plane(NamedTuple):
    """One array of an image: its name, which says the layer too, its shape ``[K, N, F]`` and its element type."""

    name: str
    shape: tuple[int, int, int]
    dtype: str


class RaggedAppend(Config):
    """What the last append to a layer left to the next query: of ``tokens`` rows, ``taken [B]`` are valid."""

    tokens: Count
    taken: Counts


class Outline(Config):
    """All of an image but its bytes; what a file says about itself.

    Attributes
    ----------
    version
        The version of this schema.
    config
        What the cache was made from.
    next, gone, ragged
        Its counters, ``[L][B]``, ``[L][B]`` and ``[L]``.
    rows
        The pages of each sequence, in token order, numbered as they come first; a number that comes again is a page
        that is shared.
    """

    version: Literal[1] = SCHEMA
    config: KVCacheConfig
    next: tuple[Counts, ...]
    gone: tuple[Counts, ...]
    ragged: tuple[RaggedAppend | None, ...]
    rows: tuple[Counts, ...]

    @classmethod
    def of(cls, config: KVCacheConfig, counters: Counters, rows: Sequence[Sequence[int]]) -> Self:
        """Give the outline of sequences that lie in any pages; those behind their last token are left out."""
        size, needed = config.page_size, counters.next.max(axis=0).tolist()
        numbers: dict[int, int] = {}
        kept = [row if size is None else row[: -(-n // size)] for row, n in zip(rows, needed, strict=True)]
        return cls(
            config=config,
            next=tuple(map(tuple, counters.next.tolist())),
            gone=tuple(map(tuple, counters.gone.tolist())),
            ragged=tuple(
                None if item is None else RaggedAppend(tokens=item.tokens, taken=tuple(item.taken.tolist()))
                for item in counters.ragged
            ),
            rows=tuple(tuple(numbers.setdefault(page, len(numbers)) for page in row) for row in kept),
        )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        config, batch = self.config, len(self.rows)
        far = [name for name, value in config if isinstance(value, int) and value > FARTHEST]
        if far:
            raise ValueError(f"config must have numbers of at most 2**53, got more in {', '.join(far)}")
        for name in ("next", "gone", "ragged"):
            if len(getattr(self, name)) != config.num_layers:
                raise ValueError(f"{name} must be of num_layers = {config.num_layers}, got {len(getattr(self, name))}")
        counts = [*self.next, *self.gone, *(item.taken for item in self.ragged if item)]
        if any(len(numbers) != batch for numbers in counts):
            raise ValueError(f"next, gone and ragged must be of the {batch} sequences of rows in every layer")
        if any(taken > item.tokens for item in self.ragged if item for taken in item.taken):
            raise ValueError("ragged must have taken no more than its tokens")
        for sequence, places in enumerate(zip(*self.next, strict=True)):
            for count, gone in zip(places, (layer[sequence] for layer in self.gone), strict=True):
                _check_held(config, count, gone)
            _check_row(config, max(places), self.rows[sequence], sequence)
        self._check_pages()
        return self

    def _check_pages(self) -> None:
        found: dict[int, int] = {}
        for row in self.rows:
            for place, page in enumerate(row):
                if page > len(found) or found.setdefault(page, place) != place:
                    raise ValueError(f"rows must number pages as they come, each at one place of its rows, got {page}")

    @property
    def batch(self) -> int:
        """Sequences."""
        return len(self.rows)

    @property
    def pages(self) -> int:
        """Pages, one that is shared counts once."""
        return int(self._homes[:, 2].max(initial=-1)) + 1

    @property
    def longest(self) -> IntArray:
        """Positions of each sequence, ``[B]``, the maximum over layers."""
        return np.asarray(self.counters.next.max(axis=0))

    @property
    def counters(self) -> Counters:
        """Counters of a cache that holds these sequences alone."""
        return Counters(
            np.array(self.next, np.int64),
            np.array(self.gone, np.int64),
            tuple(
                None if item is None else Ragged(item.tokens, np.array(item.taken, np.int64)) for item in self.ragged
            ),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        planes = (plane for layer in range(self.config.num_layers) for plane in self.planes(layer))
        return sum(math.prod(plane.shape) * numpy_dtype(plane.dtype).itemsize for plane in planes)

    def tokens(self, layer: int) -> int:
        """Give ``N``, the tokens that the image has of a layer."""
        return sum(stop - start for _, start, stop in self.parts(layer))

    def planes(self, layer: int) -> Iterator[Plane]:
        """Describe the arrays of a layer, those of the keys first."""
        config, tokens = self.config, self.tokens(layer)
        halves = ("key", config.key_codec, config.head_dim), ("value", config.value_codec, config.value_dim)
        for half, codec, size in halves:
            shapes = codec.planes(size, config.dtype)
            for part, (features, dtype) in zip(("codes", "scales") if shapes[1:] else ("tokens",), shapes, strict=True):
                yield Plane(f"layers.{layer}.{half}.{part}", (config.num_kv_heads, tokens, features), dtype)

    def parts(self, layer: int) -> list[Part]:
        """Tell which tokens the image has of a layer, in its order."""
        size, counts = self.config.page_size, (self.next[layer], self.gone[layer])
        if counts not in self._parts:
            self._parts[counts] = _joined(self._pieces(layer) if size is None else self._paged(layer, size))
        return self._parts[counts]

    def indices(self, layer: int, parts: Sequence[Part]) -> IntArray:
        """Tell where in a layer of the image the tokens of parts lie, ``[n]``; it must have them all."""
        offsets, size, places = self._offsets(layer), self.config.page_size, [np.zeros(0, np.int64)]
        for sequence, start, stop in parts:
            row, positions = np.array(self.rows[sequence], np.int64), np.arange(start, stop)
            if size is None:
                gone = np.where(positions < (self.config.pinned or 0), 0, self.gone[layer][sequence])
                places.append(offsets[row[0]] + positions - gone)
            else:
                places.append(offsets[row[positions // size]] + positions % size)
        return np.concatenate(places)

    def _pieces(self, layer: int) -> Iterator[Part]:
        pinned = self.config.pinned or 0
        for sequence, (count, gone) in enumerate(zip(self.next[layer], self.gone[layer], strict=True)):
            if gone:
                yield Part(sequence, 0, pinned)
            yield Part(sequence, pinned + gone if gone else 0, count)

    def _paged(self, layer: int, size: int) -> Iterator[Part]:
        """Give each page as the sequence has it that holds most of it."""
        sequences, places, pages = self._homes.T
        stops = np.minimum((places + 1) * size, np.array(self.next[layer], np.int64)[sequences])
        order = np.lexsort((-stops, pages))
        best = order[np.flatnonzero(np.diff(pages[order], prepend=-1))]
        return map(Part._make, np.stack([sequences, places * size, stops])[:, best].T.tolist())

    @cached_property
    def _parts(self) -> dict[tuple[Counts, Counts], list[Part]]:
        """What was found for a layer, by its counters, which are often those of the others."""
        return {}

    @cached_property
    def _homes(self) -> IntArray:
        """Sequence, place and number of every page of every row, ``[n, 3]``."""
        homes = [(b, place, page) for b, row in enumerate(self.rows) for place, page in enumerate(row)]
        return np.array(homes, np.int64).reshape(-1, 3)

    def _offsets(self, layer: int) -> IntArray:
        """Tell where in a layer of the image each page begins."""
        size, counters = self.config.page_size, self.counters
        sequences, places, pages = self._homes.T
        if size is None:
            held = counters.stored[layer][sequences]
        else:
            held = np.clip(counters.next[layer][sequences] - places * size, 0, size)
        most = np.zeros(self.pages, np.int64)
        np.maximum.at(most, pages, held)
        return np.cumsum(most) - most


def _check_held(config: KVCacheConfig, count: int, gone: int) -> None:
    """Raise ``ValueError`` if no cache gives up ``gone`` of ``count`` tokens, or holds the rest."""
    pinned, behind = config.pinned or 0, (config.window or 1) - 1
    if gone and (config.layout != "ring" or count - gone < pinned + behind):
        raise ValueError(f"gone must be what a {config.layout} cache gives up of {count} tokens, got {gone}")
    most = pinned + behind + (config.max_append or 0) if config.layout == "ring" else config.max_length
    if most is not None and count - gone > most:
        raise ValueError(f"next must leave each sequence at most the {most} tokens that the cache holds, got {count}")


def _check_row(config: KVCacheConfig, count: int, row: Sequence[int], sequence: int) -> None:
    if config.page_size is None:
        if tuple(row) != (sequence,):
            raise ValueError(f"rows must give each sequence a page of its own, got {len(row)} of sequence {sequence}")
    elif len(row) != -(-count // config.page_size):
        raise ValueError(f"rows must have the pages of {count} tokens, got {len(row)} of {config.page_size} tokens")


def _joined(parts: Iterator[Part]) -> list[Part]:
    """Join parts that follow each other in a sequence, and leave out empty ones."""
    joined: list[Part] = []
    for part in parts:
        if joined and joined[-1].sequence == part.sequence and joined[-1].stop == part.start:
            joined[-1] = joined[-1]._replace(stop=part.stop)
        elif part.start < part.stop:
            joined.append(part)
    return joined
