"""Book: a cache under random use, beside what it must hold; and Texts, which token ids stand for which tokens.

Axes: ``B`` sequences, ``K`` key/value heads, ``N`` slots, ``F`` features of a plane, ``n`` tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_layouts import CONTIGUOUS, Layout, Paged, Ring
from attnkit_conformance.cases import Array
from attnkit_conformance.soaking.state import Line, Ragged, State
from attnkit_conformance.soaking.tokens import Tokens

Pages = tuple[int, ...]
MOST_SEQUENCES = 5
_EXTREME = {"int8": 127, "uint8": 255}


class Moment(NamedTuple):
    """A snapshot, and the state that it must bring back."""

    snapshot: ak.Snapshot
    state: State


class Away(NamedTuple):
    """A sequence that was offloaded, what it must be when it comes back, and the name of it in a program."""

    name: str
    offloaded: ak.Offloaded
    line: Line
    ragged: tuple[Ragged | None, ...]


@dataclass(eq=False)
class Book:
    """A cache, and what it must hold.

    Attributes
    ----------
    name
        What a program calls the cache.
    """

    name: str
    cache: Any
    state: State
    moments: list[Moment] = field(default_factory=list)

    @property
    def config(self) -> ak.KVCacheConfig:
        """What the cache was made from."""
        config: ak.KVCacheConfig = self.cache.config
        return config

    @property
    def layout(self) -> Layout:
        """What the layout of the cache gives up and refuses."""
        match self.config:
            case ak.KVCacheConfig(layout="ring", window=int(window), max_append=int(most), pinned=int(pinned)):
                return Ring(window, most, pinned)
            case ak.KVCacheConfig(layout="paged", page_size=int(size)):
                return Paged(size)
        return CONTIGUOUS

    @property
    def pool(self) -> Any:
        """The pool of a paged cache; ``None`` of another."""
        return getattr(self.cache, "pool", None)

    @property
    def holders(self) -> Iterator[tuple[State, list[Pages]]]:
        """Everything that holds pages of the pool: the cache, and its snapshots."""
        yield self.state, self.cache.rows
        for moment in self.moments:
            yield moment.state, moment.snapshot.held.rows  # a pool that grows numbers them anew

    def observed(self) -> list[Any]:
        """Give what a refused call must not change, next to counters and tokens."""
        cache, pool = self.cache, self.pool
        kept = [] if pool is None else [pool.free, pool.used, len(pool.prefix)]
        return [cache.nbytes, cache.rows, cache.capacity.tolist(), *kept]

    def check(self, tokens: Tokens) -> None:
        """Raise unless everything that can be observed is what it must be."""
        cache, state = self.cache, self.state
        _equal("batch_size", cache.batch_size, state.batch)
        for layer in range(len(cache)):
            self._check_layer(layer, tokens)
        _equal(f"next_position of {self.name}", cache.next_position.tolist(), state.least)
        _equal(f"nbytes of {self.name}", cache.nbytes, cache.config.bytes_per_token * cache.pages[0].slots)
        cache.check_invariants()
        if self.pool is not None:
            needed = [-(-line.most // self.pool.page_size) for line in state.lines]
            _equal(f"pages of {self.name}", [len(row) for row in cache.rows], needed)

    def _check_layer(self, number: int, tokens: Tokens) -> None:
        layer, lines, name = self.cache[number], self.state.lines, f"layer {number} of {self.name}"
        lengths = [len(line.positions(number, self.layout)) for line in lines]
        _equal(f"next_position of {name}", layer.next_position.tolist(), [line.count(number) for line in lines])
        _equal(f"stored of {name}", layer.stored.tolist(), lengths)
        if (layer.capacity < lengths).any():
            raise AssertionError(f"capacity of {name} is {layer.capacity.tolist()}, it holds {lengths}")
        key, value = map(self.cache.backend.to_numpy, layer.read())
        tokens.check(name, self.state.padded(number, self.layout), (key, value))


class Texts:
    """Token ids: the same id stands for the same tokens in all layers, and nothing else does.

    Attributes
    ----------
    lately
        The texts that were told last.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[int, ...], int] = {}
        self._numbers: list[tuple[int, ...]] = []
        self._told: set[tuple[int, ...]] = {()}
        self.lately: list[list[int]] = []

    def of(self, line: Line) -> list[int]:
        """Give the ids of a sequence, as far as all its layers have come."""
        text = []
        for numbers in zip(*(array[: line.least].tolist() for array in line.numbers), strict=True):
            if numbers not in self._ids:
                self._ids[numbers] = len(self._numbers)
                self._numbers.append(numbers)
            text.append(self._ids[numbers])
        return text

    def new(self, count: int) -> list[int]:
        """Give ids that stand for nothing yet."""
        return [-1 - number for number in range(count)]

    def line(self, text: Sequence[int], layers: int) -> Line:
        """Give the sequence that a text stands for."""
        numbers = np.array([self._numbers[token] for token in text], np.int64).reshape(-1, layers)
        return Line.of(list(numbers.T))

    def tell(self, text: list[int], size: int) -> None:
        """Know that a text may be found, by pages of ``size``."""
        self._told.update(tuple(text[:stop]) for stop in range(size, len(text) + 1, size))
        self.lately = [*self.lately[-5:], text]

    def may_find(self, text: Sequence[int]) -> bool:
        """Tell whether a text may be found, whole."""
        return tuple(text) in self._told


def check_pool(pool: Any, books: Sequence[Book]) -> None:
    """Raise unless the pages in use are those that sequences and snapshots hold."""
    held = Counter(chain.from_iterable(chain.from_iterable(rows) for book in books for _, rows in book.holders))
    _equal("used pages", pool.used, len(held))
    _equal("free pages", pool.free, pool.pages[0].slots // pool.page_size - len(held))
    _equal("bytes of used pages", pool.used_bytes, len(held) * pool.page_size * pool.config.bytes_per_token)


def needed_pages(book: Book, books: Sequence[Book], layer: int, taken: Sequence[int]) -> int:
    """Give how many pages an append takes: new ones, and copies of those that somebody else holds too."""
    held = Counter(chain.from_iterable(chain.from_iterable(rows) for other in books for _, rows in other.holders))
    size, needed = book.pool.page_size, 0
    for line, row, count in zip(book.state.lines, book.cache.rows, taken, strict=True):
        start = line.count(layer)
        places = range(start // size, -(-(start + count) // size)) if count else range(0)
        needed += sum(place >= len(row) or held[row[place]] > 1 for place in places)
    return needed


def poison(books: Sequence[Book]) -> None:
    """Write NaN, and what is farthest off into codes, in every slot that holds no token which may be asked for."""
    cache = books[0].cache
    for layer, pages in enumerate(cache.pages):
        dead = np.ones(pages.slots, bool)
        for live in _live(books, layer, pages.page_size):
            dead[live] = False
        slots = np.flatnonzero(dead)[None]
        for planes in (pages.key, pages.value) if slots.size else ():
            kinds = planes.codec.planes(planes.size, planes.dtype)
            for plane, (features, dtype) in zip(planes.arrays, kinds, strict=True):
                shape = (1, plane.shape[0], slots.size, features)
                worst = np.full(shape, _EXTREME.get(dtype, np.nan), np.dtype(dtype))
                cache.backend.write(plane, slots, cache.backend.from_numpy(worst))


def _live(books: Sequence[Book], layer: int, size: int) -> Iterator[Array]:
    """Give the slots that tokens of a layer lie in: of sequences, of snapshots, and of pages that texts may find."""
    if books[0].pool is None:
        slots = books[0].cache[layer].table().slots
        yield slots[slots >= 0]
        return
    pool, inside = books[0].pool, np.arange(size)
    for book in books:
        for state, rows in book.holders:
            for line, row in zip(state.lines, rows, strict=True):
                yield (np.array(row, np.int64)[:, None] * size + inside).ravel()[: line.count(layer)]
    known = [page for page in range(pool.pages[0].slots // size) if page in pool.prefix]
    yield (np.array(known, np.int64)[:, None] * size + inside).ravel()


def _equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found}, must be {expected}")
