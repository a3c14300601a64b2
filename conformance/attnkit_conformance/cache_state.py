"""What a cache is at one moment, as values that never change: its sequences, and what was said of them.

Axes: ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnkit_conformance.cache_rows import Row
from attnkit_conformance.cases import Array

Rows = Sequence[int | None]


class Ragged(NamedTuple):
    """The query lengths that follow an append with lengths: of ``tokens`` queries each sequence has ``taken [B]``.

    ``None``: nothing says what they are, since a sequence came that had no part in the append.
    """

    tokens: int
    taken: Array | None

    def arranged(self, source: Rows) -> Ragged | None:
        """Give what is left where row ``i`` is what was row ``source[i]``; a new one took nothing."""
        if self.taken is None:
            return self
        if not len(self.taken):  # nobody took anything, so nothing is left to the next query
            return None
        return Ragged(self.tokens, np.array([0 if row is None else self.taken[row] for row in source], np.int64))


@dataclass(frozen=True)
class State:
    """Everything that a snapshot must bring back; nothing in it ever changes.

    Attributes
    ----------
    layers
        The sequences of each layer.
    ragged
        What the last append of each layer left to the next query.
    """

    layers: tuple[tuple[Row, ...], ...]
    ragged: tuple[Ragged | None, ...]


class Text(NamedTuple):
    """The beginning of a sequence by its token ids, and what it is in the layers."""

    tokens: tuple[int, ...]
    rows: tuple[Row, ...]

    def common(self, tokens: Sequence[int]) -> int:
        """Give how many of the first tokens are the same."""
        pairs = zip(self.tokens, tokens, strict=False)
        return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(self.tokens), len(tokens)))
