"""Neighbouring blocks of a window that look alike, so that one call of the fused kernel takes them all.

Their queries lie one after the other and their keys overlap, both at a constant distance, which is a matter of strides.
A call a block would leave the threads to wait for each other dozens of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from attnkit_torch.tiling.pieces import Kind, pieces_of
from attnkit_torch.tiling.scores import Terms
from attnkit_torch.tiling.tiles import Block

# Outputs, and keys in another type, exist twice for this many queries.
_ROWS = 4096


class Stack(NamedTuple):
    """Blocks one after the other, each like the first but for its place."""

    first: Block
    height: int

    @property
    def rows(self) -> slice:
        """All of its queries."""
        start, size = self.first.rows.start, self.first.rows.stop - self.first.rows.start
        return slice(start, start + self.height * size)


def stacks_of(blocks: Iterable[Block], terms: Terms) -> Iterator[Stack]:
    """Put blocks into stacks, where their masks depend on positions alone."""
    for alike, found in groupby(blocks, lambda block: _looks(block, terms)):
        run = list(found)
        most = 1 if alike is None else max(1, _ROWS // alike[0])
        for start in range(0, len(run), most):
            yield Stack(run[start], min(most, len(run) - start))


def _looks(block: Block, terms: Terms) -> tuple[int, int, int] | None:
    """Give queries, keys and their distance, for a block whose keys are a single piece with a mask."""
    pieces = pieces_of(block, terms)
    if not terms.repeats or len(pieces) > 1 or pieces[0].kind is not Kind.MASKED:
        return None
    rows, piece = block.rows, pieces[0]
    return rows.stop - rows.start, piece.stop - piece.start, rows.start - piece.start
