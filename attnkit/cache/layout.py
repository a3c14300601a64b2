"""Layout: what tells one kind of cache from another, that is where tokens go.

Axes: ``B`` sequences, ``L`` layers.

An operation of a layout is all or nothing: it writes into slots that nobody can see yet, and takes them over last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from attnkit.backend import AttentionOutput, Backend
from attnkit.cache.attending import attend_table, stored_table
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.counters import Counters
from attnkit.cache.storage import checked_backend
from attnkit.call import Options
from attnkit.pages import IntArray, Pages, SlotTable, Span, melted

if TYPE_CHECKING:
    from attnkit.cache.stepping import Step

Array = Any
Row = tuple[int, ...]
"""The pages of one sequence, in token order."""
Rows = Sequence[int | None]
Positions = tuple[tuple[Span, ...], ...]
"""For each sequence, ranges of positions ``(start, stop)``."""
_REMEMBERED = 8  # tables; the layers of a stack ask for the same one after the other


class Room(NamedTuple):
    """Where an append may write: the storage of every layer, and the slots of the new tokens."""

    pages: Sequence[Pages]
    table: SlotTable


class Grain(NamedTuple):
    """How page tables of captured work are made: pages of ``page_size`` slots, for ``room`` tokens of a sequence."""

    page_size: int
    room: int


class Layout(ABC):
    """The state of a cache, and where its tokens go.

    Attributes
    ----------
    config
        What it was made from.
    backend
        The backend that holds the bytes.
    choice
        The backend or ``"backend:path"`` that it was made with.
    counters
        How many tokens each sequence of each layer was given, and gave up.
    lock
        Held by every operation.
    steps
        For each kind of step the one that somebody still holds.
    """

    def __init__(self, config: KVCacheConfig, choice: str | Backend) -> None:
        self.backend = checked_backend(config, choice)
        self.config = config
        self.choice = choice
        self.lock = RLock()
        self.counters = Counters.empty(config.num_layers, config.batch_size)
        self.steps: WeakValueDictionary[Hashable, Step] = WeakValueDictionary()
        self._tables: dict[Positions, SlotTable] = {}

    @property
    def batch_size(self) -> int:
        """Sequences at present."""
        return self.counters.batch

    @property
    @abstractmethod
    def pages(self) -> Sequence[Pages]:
        """Storage of each layer."""

    @property
    @abstractmethod
    def capacity(self) -> IntArray:
        """Tokens that each sequence has room for, ``[B]``; a growing cache makes more when needed."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """The pages of each sequence, in token order; a page that comes twice is shared."""

    @abstractmethod
    def joining(self, rows: Sequence[Row], longest: IntArray) -> AbstractContextManager[None]:
        """Add rows at the end with room for ``longest [n]`` tokens; they are kept on leaving.

        ``rows`` are pages of an image, numbered as they come: what is shared there is shared here, where pages can be.
        If the block fails, all is as it was before; the counters are not its business.

        Raises
        ------
        CacheCapacityError
            If the layout may not hold that many.
        """

    @abstractmethod
    def spans(self, sequence: int, start: int, stop: int) -> Iterator[Span]:
        """Give the slots of the positions ``start .. stop`` of a sequence."""

    @abstractmethod
    def reserve(self, layer: int, taken: IntArray) -> AbstractContextManager[Room]:
        """Find room for ``taken [B]`` more tokens in a layer, for all layers at once; the room is kept on leaving.

        If the block fails, all is as it was before.

        Raises
        ------
        CacheCapacityError
            If the layout may not hold that many.
        """

    @abstractmethod
    def arrange(self, source: Rows) -> None:
        """Let row ``i`` be what was row ``source[i]``, a copy if it was asked for before; ``None``: a row without room.

        All or nothing; the counters are not its business.
        """

    @abstractmethod
    def clear(self) -> None:
        """Go back to the storage of an empty cache of as many sequences."""

    @abstractmethod
    def hold(self) -> Any:
        """Keep what is stored now, whatever happens to the cache."""

    @abstractmethod
    def put_back(self, held: Any) -> None:
        """Store again what ``hold`` kept, which stays as it is. All or nothing."""

    def gone_after(self, layer: int, taken: IntArray) -> IntArray:
        """Give how many tokens each sequence of a layer has given up, ``[B]``, once it took ``taken [B]`` more."""
        del taken
        return np.asarray(self.counters.gone[layer])

    def gone_within(self, name: str, kept: IntArray) -> IntArray:
        """Give how many tokens each layer has given up, ``[L, B]``, of the first ``kept [B]``; refuse what is lost."""
        del name, kept
        return self.counters.gone

    def attend(self, layer: int, query: Array, options: Options, lse: bool) -> AttentionOutput:
        """Attend over all that a layer holds; arguments are checked, and query lengths that follow filled in."""
        return attend_table(self, layer, stored_table(self, layer), None, query, options, lse)

    def grain(self) -> Grain | None:
        """Give the pages that every sequence is whole ones of for as long as storage stays; ``None``: there are none.

        The room is that of all tokens that it may hold until then, or in a paged cache that grows, of twice as many.
        """
        return None

    @abstractmethod
    def trim(self) -> None:
        """Give up room that no token needs any more, if that is worth anything."""

    @abstractmethod
    def check_rows(self) -> None:
        """Raise ``RuntimeError`` if the layout's own state contradicts itself."""

    def table(self, positions: Positions) -> SlotTable:
        """Give the slots of ranges of positions of every sequence; those asked for lately are found again."""
        found = self._tables.get(positions)
        if found is None:
            found = table_of(positions, self.spans)
            if len(self._tables) > _REMEMBERED:
                self._tables.clear()
            self._tables[positions] = found
        return found

    def moved(self) -> None:
        """Forget the tables that were found, since sequences have moved to other slots."""
        self._tables.clear()


def new_positions(start: IntArray, taken: IntArray) -> Positions:
    """Give the positions of ``taken [B]`` tokens from ``start [B]`` on."""
    return tuple(((n, n + count),) for n, count in zip(start.tolist(), taken.tolist(), strict=True))


def table_of(positions: Positions, spans: Callable[[int, int, int], Iterator[Span]]) -> SlotTable:
    """Give the slots of ranges of positions; ``spans`` gives those of the positions ``start .. stop`` of a sequence."""
    rows = (
        melted(span for start, stop in ranges for span in spans(sequence, start, stop))
        for sequence, ranges in enumerate(positions)
    )
    return SlotTable(tuple(rows))
