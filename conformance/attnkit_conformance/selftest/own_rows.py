"""Rows of a cache of one's own: the pages of a sequence, and the numbers that callers give.

Axes: ``B`` sequences, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` key head size, ``E`` value
head size, ``F`` features of a plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.plain import Array

PAGE = 7
Planes = list[Array]
"""Arrays of a sequence, those of the keys first: tokens as they are, or codes and scales."""


@dataclass(frozen=True)
class Ragged:
    """The lengths that the next queries take: of ``tokens`` of them each sequence has ``taken [B]``."""

    tokens: int
    taken: Array

    def arranged(self, source: Sequence[int | None]) -> Ragged:
        """Let sequence ``i`` be what was sequence ``source[i]``."""
        return Ragged(self.tokens, np.array([0 if b is None else self.taken[b] for b in source], np.int64))


class Row:
    """A sequence of one layer: pages, which are planes ``[K, 7, F]`` or shorter, and how many tokens are in them."""

    def __init__(self, config: ak.KVCacheConfig, planes: Planes | None = None) -> None:
        halves = (config.key_codec, config.head_dim), (config.value_codec, config.value_dim)
        shapes = [shape for codec, size in halves for shape in codec.planes(size, config.dtype)]
        empty = [np.zeros((config.num_kv_heads, 0, size), np.dtype(dtype)) for size, dtype in shapes]
        self.pages = [empty if planes is None else planes]
        self.count = self.pages[0][0].shape[1]

    @property
    def slots(self) -> list[tuple[Planes, int]]:
        """Where each token lies: its page, and its place there."""
        return [(page, place) for page in self.pages for place in range(page[0].shape[1])]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(plane.nbytes for page in self.pages for plane in page)

    def copy(self) -> Row:
        """Give a row that shares nothing with this one."""
        other: Row = object.__new__(type(self))
        other.pages, other.count = [[plane.copy() for plane in page] for page in self.pages], self.count
        return other

    def grow(self, size: int) -> None:
        """Make room for ``size`` tokens."""
        while (missing := size - len(self.slots)) > 0:
            first = self.pages[0]
            shapes = [(plane.shape[0], min(missing, PAGE), plane.shape[2]) for plane in first]
            self.pages.append([np.zeros(shape, plane.dtype) for shape, plane in zip(shapes, first, strict=True)])

    def take(self, planes: Planes, count: int) -> None:
        """Store the first ``count`` of tokens ``[K, T, F]``."""
        for token, (page, place) in enumerate(self.slots[self.count : self.count + count]):
            for plane, new in zip(page, planes, strict=True):
                plane[:, place] = new[:, token]
        self.count += count

    def cut(self, count: int) -> None:
        """Keep the first ``count`` tokens."""
        self.count = count

    def tokens(self) -> Planes:
        """Give the planes ``[K, n, F]`` of what is stored."""
        return [np.concatenate(pages, axis=1)[:, : self.count] for pages in zip(*self.pages, strict=True)]


def coded(config: ak.KVCacheConfig, key: Array, value: Array) -> Planes:
    """Give the planes ``[B, K, T, F]`` of new tokens."""
    return [*config.key_codec.encode(key, config.dtype), *config.value_codec.encode(value, config.dtype)]


def decoded(config: ak.KVCacheConfig, rows: Sequence[Planes]) -> tuple[Array, Array]:
    """Give keys ``[B, K, n, D]`` and values ``[B, K, n, E]`` of sequences, with zeros behind the shorter ones."""
    longest = max((planes[0].shape[1] for planes in rows), default=0)
    split = len(config.key_codec.planes(config.head_dim, config.dtype))
    padded = []
    for half, codec, size in (
        (slice(None, split), config.key_codec, config.head_dim),
        (slice(split, None), config.value_codec, config.value_dim),
    ):
        tokens = np.zeros((len(rows), config.num_kv_heads, longest, size), np.dtype(config.dtype))
        for row, planes in zip(tokens, rows, strict=True):
            found = codec.decode(tuple(planes[half]), size, config.dtype)
            row[:, : found.shape[1]] = found
        padded.append(tokens)
    return padded[0], padded[1]


def numbers(name: str, given: Any, count: int, most: Any) -> Array:
    """Give ``count`` integers from 0 to ``most``, or raise an error that names the argument."""
    array = np.asarray(given)
    if array.dtype.kind not in "iu":
        raise ak.DTypeError(f"{name} must be integers, got {array.dtype}")
    if array.shape not in ((), (count,)) or (array < 0).any() or (array > most).any():
        raise ak.ShapeError(f"{name} must be one integer, or {count} of them, from 0 to {most}, got {given}")
    return np.broadcast_to(array, (count,)).astype(np.int64)
