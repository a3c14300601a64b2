"""What a cache must be: a list of sequences, each of them a list of token numbers in every layer.

Axes: ``B`` sequences, ``T`` new tokens, ``n`` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from attnkit_conformance.cache_layouts import Layout
from attnkit_conformance.cases import Array


class Ragged(NamedTuple):
    """What an append with lengths leaves to the next query: of ``tokens`` rows each sequence has ``taken``."""

    tokens: int
    taken: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Line:
    """One sequence.

    Attributes
    ----------
    numbers
        For each layer every token that it was given, from position 0 on, ``[n]``.
    gone
        For each layer how many of them it gave up, next to the first few that its layout keeps.
    """

    numbers: tuple[Array, ...]
    gone: tuple[int, ...]

    @classmethod
    def of(cls, numbers: Sequence[Array]) -> Self:
        """Give a sequence that holds all it was given."""
        return cls(tuple(numbers), (0,) * len(numbers))

    def count(self, layer: int) -> int:
        """Give the position of the next token of a layer."""
        return len(self.numbers[layer])

    @property
    def least(self) -> int:
        """Positions that every layer has reached."""
        return min(map(len, self.numbers))

    @property
    def most(self) -> int:
        """Positions that some layer has reached."""
        return max(map(len, self.numbers))

    def positions(self, layer: int, layout: Layout) -> Array:
        """Give the positions of the tokens that a layer holds."""
        every, gone = np.arange(self.count(layer)), self.gone[layer]
        return np.concatenate([every[: layout.first], every[layout.first + gone :]]) if gone else every

    def held(self, layer: int, layout: Layout) -> Array:
        """Give the tokens that a layer holds."""
        return self.numbers[layer][self.positions(layer, layout)]

    def taking(self, layer: int, numbers: Array, layout: Layout) -> Line:
        """Give the sequence after a layer took tokens ``[T]``."""
        every, gone = list(self.numbers), list(self.gone)
        gone[layer] = layout.gone_after(gone[layer], len(every[layer]), len(numbers))
        every[layer] = np.concatenate([every[layer], numbers])
        return Line(tuple(every), tuple(gone))

    def cut(self, kept: int, layout: Layout) -> Line | None:
        """Give its first ``kept`` positions; ``None`` where a layer cannot go back so far."""
        gone = [layout.gone_within(lost, kept) for lost in self.gone]
        if None in gone:
            return None
        return Line(tuple(array[:kept] for array in self.numbers), tuple(lost or 0 for lost in gone))


@dataclass(frozen=True, eq=False)
class State:
    """A list of sequences, and what the last append to each layer left to the next query."""

    lines: tuple[Line, ...]
    ragged: tuple[Ragged | None, ...]

    @classmethod
    def empty(cls, layers: int, batch: int) -> Self:
        """Give sequences that hold nothing."""
        nothing = Line.of([np.zeros(0, np.int64)] * layers)
        return cls((nothing,) * batch, (None,) * layers)

    @property
    def batch(self) -> int:
        """Sequences."""
        return len(self.lines)

    @property
    def least(self) -> list[int]:
        """Positions that every layer has reached, ``[B]``."""
        return [line.least for line in self.lines]

    def padded(self, layer: int, layout: Layout) -> Array:
        """Give the tokens that a layer holds, ``[B, n]``; 0 past the end of a shorter sequence."""
        held = [line.held(layer, layout) for line in self.lines]
        padded = np.zeros((self.batch, max(map(len, held), default=0)), np.int64)
        for row, numbers in zip(padded, held, strict=True):
            row[: len(numbers)] = numbers
        return padded

    def taking(self, layer: int, numbers: Array, taken: Sequence[int], layout: Layout, *, ragged: bool) -> State:
        """Give the state after a layer took the first ``taken`` of each row of ``numbers [B, T]``."""
        tokens = numbers.shape[1]
        if not tokens:
            return self
        rows = zip(self.lines, numbers, taken, strict=True)
        left = list(self.ragged)
        left[layer] = Ragged(tokens, tuple(taken)) if ragged else None
        return State(tuple(line.taking(layer, row[:count], layout) for line, row, count in rows), tuple(left))

    def cut(self, kept: Sequence[int], layout: Layout) -> State | None:
        """Give the first ``kept`` positions of each sequence; ``None`` where one cannot go back so far."""
        lines = [line.cut(count, layout) for line, count in zip(self.lines, kept, strict=True)]
        if None in lines:
            return None
        return State(tuple(line for line in lines if line), (None,) * len(self.ragged))

    def arranged(self, source: Sequence[int]) -> State:
        """Give the sequences ``source``."""
        left = [item and item._replace(taken=tuple(item.taken[row] for row in source)) for item in self.ragged]
        return State(tuple(self.lines[row] for row in source), tuple(left))

    def adding(self, line: Line, ragged: Sequence[Ragged | None] | None = None) -> State:
        """Give the state with one more sequence, which may bring along what is left to its next query."""
        theirs = (None,) * len(self.ragged) if ragged is None else ragged
        left = [_joined(mine, other, self.batch) for mine, other in zip(self.ragged, theirs, strict=True)]
        return replace(self, lines=(*self.lines, line), ragged=tuple(left))


def _joined(mine: Ragged | None, other: Ragged | None, batch: int) -> Ragged | None:
    """Tell what is left to the next query of sequences and of one more."""
    if not batch:
        return other
    if mine is None:
        return None
    return Ragged(mine.tokens, (*mine.taken, other.taken[0] if other and other.tokens == mine.tokens else 0))
