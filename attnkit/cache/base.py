"""KVCache, a stack of layers: the operations on all of them at once.

Axes: ``B`` batch, ``K`` key/value heads, ``D`` key head size, ``E`` value head size.

A layout says where tokens go (``reserve``, ``slots``, ``table``); everything else is the same for all of them. Every
operation checks first, then writes into slots that nobody can see yet, and moves the counters last: a failed call
leaves the cache as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnkit.backend import Backend
from attnkit.cache.layer import CacheLayer
from attnkit.checks import host_integers
from attnkit.config import KVCacheConfig
from attnkit.errors import DTypeError, Reason, ShapeError, UnsupportedError
from attnkit.pages import IntArray, Pages, PageTable
from attnkit.selection import resolve

Array = Any


class KVCache(ABC):
    """Keys and values of past tokens, for all layers and sequences.

    ``cache[layer]`` gives a ``CacheLayer``. Counters are host integers ``[B]`` and are handed out as copies. Not safe
    for use by several threads at once.

    Attributes
    ----------
    config
        What it was made from.
    backend
        The backend that holds the bytes.
    choice
        The backend or ``"backend:path"`` that it was made with.
    pages
        Storage of each layer.
    """

    def __init__(self, config: KVCacheConfig, choice: str | Backend) -> None:
        if not isinstance(config, KVCacheConfig):
            raise DTypeError(f"config must be a KVCacheConfig, got {type(config).__name__}")
        self.config = config
        self.choice = choice
        self.backend = resolve(choice)[0]
        _check_dtype(self.backend, config)
        self.pages = self.initial_pages()
        self._counts = np.zeros((config.num_layers, config.batch_size), np.int64)
        self._layers = [CacheLayer(self, number, self._counts[number]) for number in range(config.num_layers)]

    @abstractmethod
    def initial_pages(self) -> list[Pages]:
        """Give the storage that an empty cache holds, one for each layer, or none."""

    @abstractmethod
    def reserve(self, needed: IntArray) -> list[Pages]:
        """Give storage with room for ``needed`` tokens of each sequence: the present one, or a larger copy.

        Raises
        ------
        CacheCapacityError
            If the layout may not hold that many.
        """

    @abstractmethod
    def slots(self, pages: Pages, start: IntArray, count: int) -> IntArray:
        """Give the slots ``[B, count]`` of tokens ``start .. start + count`` of each sequence."""

    @abstractmethod
    def table(self) -> PageTable:
        """Give the page table of the present storage."""

    @property
    @abstractmethod
    def capacity(self) -> IntArray:
        """Tokens that each sequence has room for, ``[B]``; a growing cache makes more when needed."""

    def __len__(self) -> int:
        return self.config.num_layers

    def __getitem__(self, layer: int) -> CacheLayer:
        """Give a layer; negative numbers count from the last.

        Raises
        ------
        IndexError
            If there is no such layer.
        DTypeError
            If it is no integer.
        """
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
            raise DTypeError(f"layer must be an integer, got {layer!r}")
        if not -len(self) <= layer < len(self):
            raise IndexError(f"layer must lie in 0..{len(self) - 1}, got {layer}")
        return self._layers[layer]

    def __iter__(self) -> Iterator[CacheLayer]:
        return iter(self._layers)

    @property
    def next_position(self) -> IntArray:
        """Position of the next token, ``[B]``: tokens appended minus forgotten, the minimum over layers."""
        return np.asarray(self._counts.min(axis=0))

    @property
    def seen(self) -> IntArray:
        """Another name of ``next_position``."""
        return self.next_position

    @property
    def stored(self) -> IntArray:
        """Tokens held now, ``[B]``, the minimum over layers."""
        return np.asarray(self._counts.min(axis=0))

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(pages.nbytes for pages in self.pages)

    def truncate(self, length: int | Array) -> None:
        """Keep the first ``length`` tokens (an integer, or ``[B]``) of every layer and forget the rest for good.

        Also evens out a stack that a failed forward pass left uneven.

        Raises
        ------
        ShapeError
            If a layer holds fewer.
        """
        kept = host_integers("length", length, self.config.batch_size)
        self._check_forget("length", kept, kept)
        self._set_counts(kept)

    def drop(self, count: int | Array) -> None:
        """Forget the last ``count`` tokens (an integer, or ``[B]``), counted from ``next_position``.

        Raises
        ------
        ShapeError
            If fewer are held.
        """
        dropped = host_integers("count", count, self.config.batch_size)
        self._check_forget("count", dropped, self.next_position - dropped)
        self._set_counts(self.next_position - dropped)

    def reset(self) -> None:
        """Forget everything and go back to the storage of an empty cache."""
        self.pages = self.initial_pages()
        self._set_counts(0)

    def reorder(self, indices: Array) -> None:
        """Make sequence ``b`` a copy of what was sequence ``indices[b]``; copies may diverge at once.

        Parameters
        ----------
        indices
            Integers ``[B]`` from 0 to ``B - 1``; repetitions duplicate a sequence.

        Raises
        ------
        ShapeError, DTypeError
            If they do not fit.
        """
        batch = self.config.batch_size
        source = host_integers("indices", indices, batch)
        if isinstance(indices, int | np.integer) or (source < 0).any() or (source >= batch).any():
            raise ShapeError(f"indices must be [B] = [{batch}], each in 0..B - 1 = 0..{batch - 1}, got {indices!r}")
        counts = self._counts[:, source]
        pages = [self._copy(layer, source, counts[layer]) for layer in range(len(self.pages))]
        self.pages = pages
        self._counts[:] = counts
        for layer in self._layers:
            layer.reorder_ragged(source)

    def allocate(self, num_pages: int, page_size: int) -> Pages:
        """Give fresh storage for one layer."""
        return self.backend.allocate(
            num_pages,
            page_size,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            value_dim=self.config.value_dim,
            dtype=self.config.dtype,
        )

    def _set_counts(self, counts: IntArray | int) -> None:
        self._counts[:] = counts
        for layer in self._layers:
            layer.forget_ragged()

    def _copy(self, layer: int, source: IntArray, counts: IntArray) -> Pages:
        """Give fresh storage like a layer's, with the sequences ``source`` in their places."""
        old = self.pages[layer]
        fresh = self.allocate(int(old.key.shape[0]), old.page_size)
        table = self.table()
        moved = PageTable(table.index[source], table.start[source])
        key, value = self.backend.gather(old, moved.slots(counts, old.page_size))
        self.backend.write(fresh, table.slots(counts, old.page_size), key, value)
        return fresh

    def _check_forget(self, name: str, numbers: IntArray, kept: IntArray) -> None:
        held = self.stored
        if (numbers < 0).any() or (kept < 0).any() or (kept > held).any():
            raise ShapeError(f"{name} must lie in 0..stored, which is {held.tolist()}, got {numbers.tolist()}")


def _check_dtype(backend: Backend, config: KVCacheConfig) -> None:
    known = backend.capabilities().dtypes
    if config.dtype not in known:
        reason = Reason("dtypes", "dtype", " or ".join(sorted(known)), config.dtype)
        raise UnsupportedError(f"backend {backend.name!r} cannot store this cache:", {backend.name: (reason,)})
