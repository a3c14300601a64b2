"""The tiles of a block, as torch's fused CPU kernel takes them: full, causal, or with a mask.

The kernel knows the causal mask of a square; any other costs a mask in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from attnkit import AttentionRequest, Tile
from attnkit_torch.tiling.scores import Terms
from attnkit_torch.tiling.tiles import Block, Sizes

# A mask of no more elements costs less than the calls that it takes to need a smaller one or none.
_SMALL = 2**20

# A mask of more columns is cut in two, so that it stays small.
_COLUMNS = 2048

# Many rows suit the kernel; more would make large masks where its own causal one is of no use. Beside a window few rows
# see the fewest keys in vain.
_ROWS, _FEWEST_ROWS = 2048, 64
_ALL = 2**62


class Kind(Enum):
    """Which keys of a piece the rows see: all, those up to their own number from the start, or what a mask says."""

    FULL = auto()
    CAUSAL = auto()
    MASKED = auto()


class Piece(NamedTuple):
    """Keys ``[start, stop)``."""

    start: int
    stop: int
    kind: Kind


def tile_sizes(request: AttentionRequest) -> Sizes | None:
    """Give queries and keys of a tile that suit the kernel; ``None`` where masks in memory have to stay small."""
    mask = request.mask
    if request.bias or request.alibi or mask.documents or mask.dense or mask.chunks or mask.prefix is not None:
        return None
    return Sizes(_ROWS if mask.left is None else min(_ROWS, max(_FEWEST_ROWS, mask.left // 4)), _ALL)


def pieces_of(block: Block, terms: Terms) -> list[Piece]:
    """Give the pieces of a block, the last keys first."""
    found: list[Piece] = []
    for tile in block.tiles:
        for piece in _cut(tile, block.rows, terms):
            last = found[-1] if found else None
            if last and last.start == piece.stop and last.kind == piece.kind and _may_join(piece, last):
                found[-1] = Piece(piece.start, last.stop, piece.kind)
            else:
                found.append(piece)
    return found


def _cut(tile: Tile, rows: slice, terms: Terms) -> Iterator[Piece]:
    """Give the pieces of a tile: one, where its core and its edges are not worth a call each."""
    square = _has_square(tile, rows, terms)
    core_stop = tile.core_stop - 1 if square else tile.core_stop
    bare = square and core_stop == tile.start
    small = (rows.stop - rows.start) * (tile.stop - tile.start) <= _SMALL
    if tile.kind == "full" or tile.masked or terms.adds or (small and not bare):
        yield Piece(tile.start, tile.stop, Kind.FULL if tile.kind == "full" else Kind.MASKED)
        return
    if core_stop < tile.stop:
        yield Piece(core_stop, tile.stop, Kind.CAUSAL if square else Kind.MASKED)
    if tile.core_start < core_stop:
        yield Piece(tile.core_start, core_stop, Kind.FULL)
    if tile.start < tile.core_start:
        yield Piece(tile.start, tile.core_start, Kind.MASKED)


def _has_square(tile: Tile, rows: slice, terms: Terms) -> bool:
    """Tell whether the first row sees no key after the core, and each other row one key more.

    The kernel multiplies its own causal mask by the scale, so it may not be used for one below 0.
    """
    structure = terms.structure
    if terms.scale <= 0 or structure.prefix is not None or structure.chunks or tile.core_start == tile.core_stop:
        return False
    last = structure.last_key(terms.query_position + rows.start)
    return last is not None and last - terms.key_position == tile.core_stop - 1


def _may_join(one: Piece, other: Piece) -> bool:
    if one.kind is Kind.MASKED:
        return one.stop - one.start + other.stop - other.start <= _COLUMNS
    return one.kind is Kind.FULL
