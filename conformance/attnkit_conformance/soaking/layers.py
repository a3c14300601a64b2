"""What random use does to the layers of a cache: appending and attending.

Axes: ``B`` sequences, ``H`` query heads, ``T`` new tokens, ``D`` key head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.numerics import numerics_for
from attnkit_conformance.cache_truth import Places, stored_tolerance, stored_truth
from attnkit_conformance.cases import Array
from attnkit_conformance.soaking.book import Book, needed_pages
from attnkit_conformance.soaking.desk import Desk
from attnkit_conformance.soaking.setting import HEADS


class LayerSteps(Desk):
    """Steps on layers."""

    def _append(self, book: Book) -> None:
        """Let every layer take tokens, or, as in a forward pass that fails, some of them."""
        most = book.layout.longest_append or 9
        self._take(book, int(self.rng.choice([0, 1, 1, 1, 1, 2, 3, int(self.rng.integers(most + 1))])))

    def _append_long(self, book: Book) -> None:
        """Append enough for any cache that grows to grow."""
        self._take(book, book.layout.longest_append or int(self.rng.integers(20, 70)))

    def _take(self, book: Book, count: int) -> None:
        count, batch = min(count, book.layout.longest_append or count), book.state.batch
        layers = self.rng.permutation(len(book.cache))
        ragged = bool(self.rng.random() < 0.5)
        taken = self._numbers([count] * batch) if ragged else [count] * batch
        for layer in layers[: 1 if self.rng.random() < 0.1 else None].tolist():
            call, numbers = self._appending(book, layer, taken, count, ragged=ragged)
            line = f"{book.name}[{layer}].append(*tokens({batch}, {count}){f', lengths={taken}' if ragged else ''})"
            if self._has_no_room(book, layer, taken):
                self._refused(book, ak.CacheCapacityError, line, call)
                return
            self.program.append(line)
            call()
            book.state = book.state.taking(layer, numbers, taken, book.layout, ragged=ragged)

    def _appending(
        self, book: Book, layer: int, taken: list[int], count: int, *, ragged: bool
    ) -> tuple[Callable[[], None], Any]:
        """Give a call that appends new tokens, and their numbers; padding is NaN, and so are the arrays afterwards."""
        numbers = self.tokens.draw(self.rng, book.state.batch, count)
        arrays = self.tokens.arrays(numbers)
        for array in arrays if ragged else ():
            for row, stop in zip(array, taken, strict=True):
                row[:, stop:] = np.nan
        given = [book.cache.backend.from_numpy(np.ascontiguousarray(array)) for array in arrays]

        def call() -> None:
            book.cache[layer].append(*given, lengths=taken if ragged else None)
            for array in given:
                array[...] = np.nan

        return call, numbers

    def _has_no_room(self, book: Book, layer: int, taken: list[int]) -> bool:
        lengths = [line.count(layer) + count for line, count in zip(book.state.lines, taken, strict=True)]
        if book.config.max_length is not None and max(lengths, default=0) > book.config.max_length:
            return True
        pool = book.pool
        if pool is None or pool.grows:
            return False
        return bool(needed_pages(book, self._sharing(book), layer, taken) > pool.free)

    def _attend(self, book: Book) -> None:
        """Attend over a layer, and compare with the oracle on the tokens that it holds."""
        layer = int(self.rng.integers(len(book.cache)))
        left = book.state.ragged[layer]
        follows = left is not None and left.tokens < 6 and self.rng.random() < 0.5
        rows = left.tokens if left is not None and follows else int(self.rng.integers(1, 5))
        shape = (book.state.batch, HEADS, rows, book.config.head_dim)
        query = self.rng.standard_normal(shape).astype(np.dtype(book.config.dtype))
        self._ask(book, layer, query, self._options(book.config))

    def _ask(self, book: Book, layer: int, query: Array, options: Mapping[str, Any]) -> None:
        cache, state, layout, dtype = book.cache, book.state, book.layout, book.config.dtype
        self.program.append(f"{book.name}[{layer}].attend(queries({state.batch}, {query.shape[2]}), **{options})")
        found = cache[layer].attend_with_lse(cache.backend.from_numpy(query), **options)
        left = state.ragged[layer]
        if left is not None and left.tokens == query.shape[2]:
            options = {**options, "query_lengths": np.array(left.taken)}
        held = [line.positions(layer, layout) for line in state.lines]
        places = Places(held, np.array([line.count(layer) for line in state.lines]), layout.first)
        key, value = self.tokens.arrays(state.padded(layer, layout), read=True)
        truth = stored_truth(query, key, value, options, places)
        bound = stored_tolerance(truth, numerics_for(cache.backend.capabilities().numerics[dtype], dtype), places)
        for what in ("output", "lse"):
            near = cache.backend.to_numpy(getattr(found, what)).astype(np.float64)
            _check_near(f"{what} of layer {layer}", near, getattr(truth, what), getattr(bound, what))

    def _options(self, config: ak.KVCacheConfig) -> Mapping[str, Any]:
        window = ak.Mask.window(config.window or int(self.rng.integers(1, 8)))
        masks = (None, ak.Mask.causal(), window, ak.Mask.causal() & window)
        mask = masks[int(self.rng.integers(len(masks)))]
        return {} if mask is None else {"mask": mask}

    def _refused_append(self, book: Book) -> None:
        """Append more than there is room for, where that can be."""
        config, pool, batch = book.config, book.pool, book.state.batch
        layer = int(self.rng.integers(len(book.cache)))
        most = book.layout.longest_append
        if most is None:
            room = (config.max_length or 0) if pool is None or pool.grows else pool.free * pool.page_size
            most = room and max(room - max(line.count(layer) for line in book.state.lines), 0) + room
        taken = self._numbers([most + 9] * batch)
        taken[self._row(book)] = most + 1 + int(self.rng.integers(9))
        self._check_capacity(book)
        call, _ = self._appending(book, layer, taken, most + 9, ragged=True)
        if book.layout.longest_append or self._has_no_room(book, layer, taken):
            line = f"{book.name}[{layer}].append(*tokens({batch}, {most + 9}), lengths={taken})"
            self._refused(book, ak.CacheCapacityError, line, call)

    def _check_capacity(self, book: Book) -> None:
        """Raise unless one sequence alone could come to hold its capacity, and no more."""
        row, layer = self._row(book), int(self.rng.integers(len(book.cache)))
        if book.layout.longest_append or (book.config.max_length is None and (book.pool is None or book.pool.grows)):
            return
        capacity, line = int(book.cache.capacity[row]), book.state.lines[row]
        for length, fits in ((capacity, True), (capacity + 1, False)):
            taken = [0] * book.state.batch
            taken[row] = length - line.count(layer)
            if line.least == line.most and self._has_no_room(book, layer, taken) == fits:
                raise AssertionError(f"capacity of sequence {row} is {capacity}, but {length} tokens fit: {not fits}")

    def _misfit(self, book: Book) -> None:
        """Give arrays and numbers of a wrong shape."""
        cache, config, batch = book.cache, book.config, book.state.batch
        head = batch, config.num_kv_heads

        def new(*shape: int) -> Any:
            return cache.backend.from_numpy(np.zeros(shape, np.float32))

        key, value, query = new(*head, 2, config.head_dim), new(*head, 2, config.value_dim), (batch, HEADS, 2)
        calls: dict[str, Callable[[], object]] = {
            "append(key, values(3))": lambda: cache[0].append(key, new(*head, 3, config.value_dim)),
            "append(value, key)": lambda: cache[0].append(value, key),
            "append(keys(B + 1), values)": lambda: cache[0].append(new(batch + 1, *key.shape[1:]), value),
            "append(key, value, lengths=3)": lambda: cache[0].append(key, value, lengths=3),
            "append(key, value, lengths=[0] * (B + 1))": lambda: cache[0].append(key, value, lengths=[0] * (batch + 1)),
            "attend(queries of another size)": lambda: cache[0].attend(new(*query, config.head_dim + 1)),
            "truncate([0] * (B + 1))": lambda: cache.truncate([0] * (batch + 1)),
            "reorder([0] * (B + 1))": lambda: cache.reorder([0] * (batch + 1)),
            "repeat(-1)": lambda: cache.repeat(-1),
        }
        what = str(self.rng.choice(list(calls)))
        self._refused(book, ak.ShapeError, f"{book.name}: {what}", calls[what])


def _check_near(what: str, found: Array, expected: Array, bound: Array) -> None:
    with np.errstate(invalid="ignore"):
        far = ~((np.abs(found - expected) <= bound) | (found == expected))
    if far.any():
        at = tuple(int(place) for place in np.argwhere(far)[0])
        raise AssertionError(f"{what} at {at}: {found[at]}, must be {expected[at]} within {bound[at]:.2g}")
