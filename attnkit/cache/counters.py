"""Counters: how many tokens each sequence of each layer was given, and how many of them it gave up.

Axes: ``L`` layers, ``B`` sequences, ``T`` new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.pages import IntArray


@dataclass(frozen=True)
class Ragged:
    """The query lengths that follow an append with lengths: of a query of ``tokens`` rows, ``taken [B]`` are valid."""

    tokens: int
    taken: IntArray


@dataclass(frozen=True)
class Counters:
    """Host integers of a cache; every operation makes new ones, and puts them in place last.

    Attributes
    ----------
    next
        Position of the next token, ``[L, B]``.
    gone
        Tokens given up on the way, ``[L, B]``: those a ring evicted, next to its pinned ones.
    ragged
        For each layer, what its last append left to the next query; ``None`` after one without lengths.
    """

    next: IntArray
    gone: IntArray
    ragged: tuple[Ragged | None, ...]

    @classmethod
    def empty(cls, layers: int, batch: int) -> Counters:
        """Give the counters of a cache that holds nothing."""
        return cls(np.zeros((layers, batch), np.int64), np.zeros((layers, batch), np.int64), (None,) * layers)

    @property
    def batch(self) -> int:
        """Sequences."""
        return int(self.next.shape[1])

    @property
    def stored(self) -> IntArray:
        """Tokens held now, ``[L, B]``."""
        return self.next - self.gone

    def after_append(self, layer: int, taken: IntArray, gone: IntArray, ragged: Ragged | None) -> Counters:
        """Give the counters after a layer took ``taken [B]`` tokens and has given up ``gone [B]`` in all."""
        counts, evicted, rest = self.next.copy(), self.gone.copy(), list(self.ragged)
        counts[layer] += taken
        evicted[layer], rest[layer] = gone, ragged
        return Counters(counts, evicted, tuple(rest))

    def after_step(self, taken: IntArray, gone: IntArray, ragged: Ragged | None) -> Counters:
        """Give the counters after every layer took ``taken [B]`` tokens and has given up ``gone [B]`` in all."""
        evicted = np.broadcast_to(gone, self.gone.shape).copy()
        return Counters(self.next + taken, evicted, (ragged,) * len(self.ragged))

    def truncated(self, kept: IntArray, gone: IntArray) -> Counters:
        """Give the counters of sequences cut to ``kept [B]`` positions; ``gone [L, B]`` as it is after that."""
        return Counters(np.broadcast_to(kept, self.next.shape).copy(), gone, (None,) * len(self.ragged))

    def arranged(self, source: Sequence[int | None], start: int = 0) -> Counters:
        """Give the counters of a batch whose row ``i`` is what was row ``source[i]``; ``None``: a new one.

        A new row begins at position ``start``.
        """
        rows = np.array([-1 if row is None else row for row in source], np.int64)
        new, held = rows < 0, self.batch > 0
        counts, gone = (
            np.where(new, fresh, array[:, rows]) if held else np.full((len(array), len(rows)), fresh)
            for array, fresh in ((self.next, start), (self.gone, 0))
        )
        ragged = tuple(None if item is None else _arranged(item, rows, new) for item in self.ragged)
        return Counters(counts, gone, ragged)

    def joined(self, more: Counters) -> Counters:
        """Give the counters of these sequences and, behind them, others of as many layers.

        Where the last append to a layer was not one to all of them, the others took nothing of it.
        """
        pairs = zip(self.ragged, more.ragged, strict=True)
        ragged = tuple(_joined(mine, other, more.batch) if self.batch else other for mine, other in pairs)
        return Counters(np.hstack([self.next, more.next]), np.hstack([self.gone, more.gone]), ragged)


def _joined(mine: Ragged | None, other: Ragged | None, batch: int) -> Ragged | None:
    if mine is None:
        return None
    alike = other is not None and other.tokens == mine.tokens
    return Ragged(mine.tokens, np.append(mine.taken, other.taken if other and alike else np.zeros(batch, np.int64)))


def _arranged(ragged: Ragged, rows: IntArray, new: np.ndarray[Any, np.dtype[np.bool_]]) -> Ragged | None:
    if not len(rows) or not len(ragged.taken):
        return None
    return Ragged(ragged.tokens, np.where(new, 0, ragged.taken[rows]))
