"""Schedule: which tiles of queries x keys are empty, full or partial under a mask.

Every positional mask leaves each query one interval of keys, with ends that never move left from one query to the
next, and the interval holds the query's own position. So the rows of a tile together see one interval without gaps: the
*union*, from the first row's first key to the last row's last key. The keys that every row sees are one interval too:
the *core*, from the last row's first key to the first row's last key. A tiled path walks the union, masks outside the
core only, and never touches the rest. Documents and dense masks are arrays; they are summed up per tile as it comes.

All numbers here are host integers of one sequence; keys are counted from its key 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from attnkit.structure import MaskStructure, visible

Kind = Literal["full", "partial"]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


class Tile(NamedTuple):
    """Keys ``[start, stop)`` for one block of queries; every row sees ``[core_start, core_stop)`` by position.

    ``masked`` says that documents or a dense mask hide some of the tile, so that ``core`` does not suffice.
    """

    start: int
    stop: int
    core_start: int
    core_stop: int
    masked: bool = False

    @property
    def kind(self) -> Kind:
        """``"full"`` where every row sees every key of the tile."""
        whole = self.core_start == self.start and self.core_stop == self.stop
        return "full" if whole and not self.masked else "partial"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tiles of one sequence (and of one head, where a dense mask differs by head).

    Parameters
    ----------
    structure
        The mask's structure.
    query_length, key_length
        Valid queries and keys; what lies beyond is padding and belongs to no tile.
    query_position, key_position
        Positions of query 0 and key 0.
    tile_queries, tile_keys
        Rows and columns of a tile.
    documents
        ``(ids_q [T], ids_k [S])`` pairs.
    dense
        Boolean arrays ``[T, S]`` (axes of length 1 broadcast).
    """

    structure: MaskStructure
    query_length: int
    key_length: int
    query_position: int
    key_position: int = 0
    tile_queries: int = 128
    tile_keys: int = 512
    documents: tuple[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], ...] = ()
    dense: tuple[BoolArray, ...] = ()

    def rows(self) -> Iterator[tuple[int, int]]:
        """Give the blocks of queries ``[start, stop)``."""
        for start in range(0, self.query_length, self.tile_queries):
            yield start, min(start + self.tile_queries, self.query_length)

    def keys_of(self, start: int, stop: int) -> tuple[int, int, int, int]:
        """Give the union ``[first, last)`` and the core ``[first, last)`` of the keys that queries see by position."""
        top, bottom = self.query_position + start, self.query_position + stop - 1
        union = self._clip(self.structure.first_key(top), self.structure.last_key(bottom))
        core = self._clip(self.structure.first_key(bottom), self.structure.last_key(top))
        return (*union, *core)

    def tiles(self, start: int, stop: int) -> Iterator[Tile]:
        """Give the tiles that queries ``[start, stop)`` have to visit, the last keys first.

        Backwards, since under a causal mask the largest scores lie near the diagonal: the running maximum is nearly
        final after one tile.
        """
        first, last, core_first, core_last = self.keys_of(start, stop)
        for end in range(last, first, -self.tile_keys):
            begin = max(first, end - self.tile_keys)
            core_start = min(max(core_first, begin), end)
            tile = Tile(begin, end, core_start, max(core_start, min(core_last, end)))
            state = self._array_state(start, stop, begin, end)
            if state != "empty":
                yield tile._replace(masked=state == "partial")

    def hidden(self, start: int, stop: int, tile: Tile) -> BoolArray:
        """Give the hidden keys of a tile, ``[stop - start, tile.stop - tile.start]``, ``True`` = hidden."""
        rows = self.query_position + np.arange(start, stop)[:, None]
        keys = self.key_position + np.arange(tile.start, tile.stop)[None, :]
        shown = visible(self.structure, rows, keys)
        for ids_q, ids_k in self.documents:
            shown = shown & (ids_q[start:stop, None] == ids_k[None, tile.start : tile.stop])
        for array in self.dense:
            shown = shown & _cut(array, start, stop, tile.start, tile.stop)
        return np.asarray(~shown)

    def kind(self, rows: tuple[int, int], keys: tuple[int, int]) -> Literal["empty", "full", "partial"]:
        """Classify any tile: exact for positional masks; documents may say partial for a full or empty one."""
        first, last, core_first, core_last = self.keys_of(*rows)
        state = self._array_state(*rows, *keys)
        if state == "empty" or max(keys[0], first) >= min(keys[1], last):
            return "empty"
        whole = core_first <= keys[0] and keys[1] <= core_last and state == "full"
        return "full" if whole else "partial"

    def _clip(self, first: int | None, last: int | None) -> tuple[int, int]:
        """Turn key positions ``first..last`` into the range of valid keys that they cover."""
        start = 0 if first is None else min(max(first - self.key_position, 0), self.key_length)
        stop = self.key_length if last is None else min(max(last + 1 - self.key_position, 0), self.key_length)
        return start, max(start, stop)

    def _array_state(self, start: int, stop: int, first: int, last: int) -> Literal["empty", "full", "partial"]:
        states = [_document_state(q[start:stop], k[first:last]) for q, k in self.documents]
        states += [_dense_state(_cut(array, start, stop, first, last)) for array in self.dense]
        if "empty" in states:
            return "empty"
        return "partial" if "partial" in states else "full"


def _document_state(ids_q: np.ndarray[Any, Any], ids_k: np.ndarray[Any, Any]) -> Literal["empty", "full", "partial"]:
    low, high = max(ids_q.min(), ids_k.min()), min(ids_q.max(), ids_k.max())
    if low > high:
        return "empty"
    return "full" if ids_q.min() == ids_q.max() == ids_k.min() == ids_k.max() else "partial"


def _dense_state(block: BoolArray) -> Literal["empty", "full", "partial"]:
    if block.all():
        return "full"
    return "partial" if block.any() else "empty"


def _cut(array: BoolArray, start: int, stop: int, first: int, last: int) -> BoolArray:
    """Cut ``[start:stop, first:last]`` out of ``[T, S]``; an axis of length 1 broadcasts."""
    rows = slice(None) if array.shape[0] == 1 else slice(start, stop)
    keys = slice(None) if array.shape[1] == 1 else slice(first, last)
    return array[rows, keys]
