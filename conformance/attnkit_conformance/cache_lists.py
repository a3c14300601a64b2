"""Lists: what a KV cache must be equal to, plain lists of what each sequence of each layer was given.

Axes: ``B`` sequences, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` query/key head size, ``E``
value head size.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_layouts import Paged
from attnkit_conformance.cache_pool_model import Pages, PoolModel
from attnkit_conformance.cache_rows import Row, Tokens
from attnkit_conformance.cache_state import Ragged, Rows, State, Text
from attnkit_conformance.cache_truth import Places
from attnkit_conformance.cases import Array


class Lists:
    """A cache as lists.

    Attributes
    ----------
    case
        Whose cache it is.
    state
        What it holds.
    texts
        What it was told about the tokens of sequences.
    pool
        Who holds which pages, where there are only so many.
    """

    def __init__(self, case: CacheCase) -> None:
        self.case = case
        nothing = tuple(np.zeros((case.kv_heads, 0, size)) for size in (case.head_dim, case.width))
        self._empty = Row.empty(*self._taken((nothing[0], nothing[1])))
        self.state = State(((self._empty,) * case.batch,) * case.layers, (None,) * case.layers)
        self.texts: list[Text] = []
        self.pool = _pool(case)

    @property
    def batch(self) -> int:
        """Sequences."""
        return len(self.state.layers[0])

    def positions(self, layer: int) -> Array:
        """Give the position of the next token of each sequence of a layer, ``[B]``."""
        return np.array([row.count for row in self.state.layers[layer]], np.int64)

    def least(self) -> Array:
        """Give the least of these over all layers, ``[B]``."""
        return np.asarray(np.min([self.positions(layer) for layer in range(self.case.layers)], axis=0))

    def places(self, layer: int) -> Places:
        """Tell where the tokens of a layer stand."""
        held = [row.held(self.case.layout) for row in self.state.layers[layer]]
        return Places(held, self.positions(layer), self.case.layout.first)

    # Appending

    def may_take(self, layer: int, taken: Array) -> bool | None:
        """Tell whether a layer must take some tokens more, ``[B]``, or refuse them; ``None``: it may do either."""
        starts, longest, limit = self.positions(layer), self.case.layout.longest_append, self.case.max_length
        if longest is not None and taken.max(initial=0) > longest:
            return False
        if limit and (starts + taken).max(initial=0) > limit:
            return False
        if self.pool is None:
            return True
        needed, free = self.pool.needed(starts.tolist(), taken.tolist()), self.pool.free
        return None if needed.start <= free < needed.stop - 1 else free >= needed.stop - 1

    def take(self, layer: int, tokens: Tokens, taken: Array, *, ragged: bool) -> None:
        """Let each sequence take the first ``taken [B]`` of ``tokens [B, K, T, F]``."""
        if self.pool is not None:
            self.pool.take(self.positions(layer).tolist(), taken.tolist())
        count = tokens[0].shape[2]
        if not count:
            return
        given, stored = self._taken(tokens)
        rows = [
            row.taking(_own(given, b, n), _own(stored, b, n), self.case.layout, exact=not self.case.coded)
            for b, (row, n) in enumerate(zip(self.state.layers[layer], taken.tolist(), strict=True))
        ]
        self._put(layer, rows, Ragged(count, taken) if ragged else None)

    def learn(self, layer: int, read: Tokens) -> None:
        """Remember what reading gave, ``[B, K, n, D]`` and ``[B, K, n, E]``."""
        rows = []
        for b, row in enumerate(self.state.layers[layer]):
            held = row.held(self.case.layout)
            rows.append(row.learned(held, _own(read, b, len(held))))
        self._put(layer, rows, self.state.ragged[layer])

    # Forgetting

    def can_cut(self, kept: Array) -> bool:
        """Tell whether the layout can go back to ``kept [B]`` positions."""
        layout = self.case.layout
        return all(
            layout.gone_within(row.gone, int(n)) is not None
            for rows in self.state.layers
            for row, n in zip(rows, kept, strict=True)
        )

    def cut(self, kept: Array) -> None:
        """Keep the positions below ``kept [B]``."""
        layout = self.case.layout
        layers = tuple(
            tuple(row.cut(int(n), layout) for row, n in zip(rows, kept, strict=True)) for rows in self.state.layers
        )
        self.state = State(layers, (None,) * self.case.layers)
        if self.pool is not None:
            self.pool.cut([int(n) for n in kept])

    # The list of sequences

    def arrange(self, source: Rows) -> None:
        """Let row ``i`` be what was row ``source[i]``; ``None``: an empty one."""
        layers = tuple(tuple(self._empty if row is None else rows[row] for row in source) for rows in self.state.layers)
        ragged = tuple(None if left is None else left.arranged(source) for left in self.state.ragged)
        self.state = State(layers, ragged)
        if self.pool is not None:
            self.pool.arrange(source)

    def may_add(self, rows: Sequence[Row]) -> bool:
        """Tell whether there is room for a sequence that shares no page."""
        return self.pool is None or self.pool.layout.pages(max(row.count for row in rows)) <= self.pool.free

    def add(self, rows: Sequence[Row], *, shared: bool = False) -> None:
        """Add a sequence at the end, which has these rows in the layers; ``shared``: it is known what it took last."""
        self.arrange([*range(self.batch), None])
        layers = tuple((*own[:-1], row) for own, row in zip(self.state.layers, rows, strict=True))
        ragged = self.state.ragged
        if not shared:
            ragged = tuple(None if left is None else Ragged(left.tokens, None) for left in ragged)
        self.state = State(layers, ragged)
        if self.pool is not None:
            nothing = [0] * (self.batch - 1)
            self.pool.take([*nothing, 0], [*nothing, max(row.count for row in rows)])

    def names(self, sequence: int) -> list[int]:
        """Give each token of a sequence a number, the same wherever all layers were given the same."""
        rows = [rows[sequence] for rows in self.state.layers]
        count = min(row.count for row in rows)
        parts = [b"".join(array[:, n].tobytes() for row in rows for array in row.given) for n in range(count)]
        return [zlib.crc32(part) for part in parts]

    def remember(self, sequence: int, tokens: Sequence[int]) -> None:
        """Know the tokens of the beginning of a sequence."""
        self.texts.append(Text(tuple(tokens), tuple(rows[sequence] for rows in self.state.layers)))

    def beginning(self, tokens: Sequence[int], count: int) -> tuple[Row, ...] | None:
        """Give what the first ``count`` tokens are in the layers, if a sequence was known to begin with them."""
        layout = self.case.layout
        for text in self.texts:
            if count and text.common(tokens) >= count:
                return tuple(row.cut(count, layout) for row in text.rows)
        return None

    def restore(self, state: State, pages: list[Pages] | None) -> None:
        """Go back to a state, and to who held which pages then."""
        self.state = state
        if self.pool is not None and pages is not None:
            self.pool.rows = list(pages)

    def reopened(self, case: CacheCase) -> Lists:
        """Give what another cache must hold that is made of this one; what was told of tokens does not go along.

        Where its tokens are stored in another way, they are encoded anew, as they were read.
        """
        other = Lists(case)
        same = (case.codecs, case.stored_dtype) == (self.case.codecs, self.case.stored_dtype)
        layers = tuple(tuple(row if same else other.anew(row) for row in rows) for rows in self.state.layers)
        other.state = State(layers, self.state.ragged)
        if other.pool is not None and self.pool is not None and case.layout == self.case.layout:
            other.pool = self.pool.without_snapshots()
        elif other.pool is not None:
            counts = [max(row.count for row in rows) for rows in zip(*layers, strict=True)]
            other.pool.rows = [()] * self.batch
            other.pool.take([0] * self.batch, counts)
        return other

    def anew(self, row: Row) -> Row:
        """Give a row of another cache, whose tokens were all read, as it is stored here."""
        given, stored = self._taken(row.read)
        return Row(given, stored, np.full(row.count, not self.case.coded), row.gone)

    def padded(self, layer: int, half: int, *, read: bool) -> Array:
        """Give the keys (0) or values (1) that a layer holds, ``[B, K, n, F]``, zeros after a shorter sequence.

        ``read``: as reading gave them; else as they were given.
        """
        held = self.places(layer).held
        nothing = (self._empty.read if read else self._empty.given)[half]
        padded = np.zeros((len(held), len(nothing), max(map(len, held), default=0), nothing.shape[-1]), nothing.dtype)
        for own, row, positions in zip(padded, self.state.layers[layer], held, strict=True):
            own[:, : len(positions)] = (row.read if read else row.given)[half][:, positions]
        return padded

    def known(self, layer: int) -> Array:
        """Tell which slots ``[B, n]`` reading has been asked for before, padding among them."""
        held = self.places(layer).held
        longest = max(map(len, held), default=0)
        known = np.ones((self.batch, longest), bool)
        for b, (row, positions) in enumerate(zip(self.state.layers[layer], held, strict=True)):
            known[b, : len(positions)] = row.known[positions]
        return known

    def _taken(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        """Give tokens as they were given, and in the element type of the cache; codecs take them as they are."""
        key, value = (array.astype(np.dtype(self.case.stored_dtype)) for array in tokens)
        if not self.case.coded:
            return (key, value), (key, value)
        return (np.asarray(tokens[0], np.float64), np.asarray(tokens[1], np.float64)), (key, value)

    def _put(self, layer: int, rows: Sequence[Row], left: Ragged | None) -> None:
        layers, ragged = list(self.state.layers), list(self.state.ragged)
        layers[layer], ragged[layer] = tuple(rows), left
        self.state = State(tuple(layers), tuple(ragged))


def _own(tokens: Tokens, sequence: int, count: int) -> Tokens:
    return tokens[0][sequence, :, :count], tokens[1][sequence, :, :count]


def _pool(case: CacheCase) -> PoolModel | None:
    layout = case.layout
    if not isinstance(layout, Paged) or not (layout.num_pages or case.max_length):
        return None
    size = layout.num_pages or case.batch * layout.pages(case.max_length)
    return PoolModel(layout, size, [()] * case.batch)
