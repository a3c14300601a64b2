"""Sequences: the operations of a history on whole sequences: forgetting, copying, coming and going.

Axes: ``B`` sequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_lists import Lists
from attnkit_conformance.cache_pool_model import Pages
from attnkit_conformance.cache_rows import Row
from attnkit_conformance.cache_state import Rows, State
from attnkit_conformance.caches import CacheUnderTest
from attnkit_conformance.cases import Array
from attnkit_conformance.compare import assert_equal
from attnkit_conformance.harness.local import Thing


@dataclass(frozen=True)
class Moment:
    """A snapshot of a cache, and of the lists beside it."""

    thing: Thing
    state: State
    pages: list[Pages] | None


@dataclass(frozen=True)
class Away:
    """A sequence that is offloaded, and what it must be when it comes back."""

    thing: Thing
    rows: tuple[Row, ...]


class Sequences(ABC):
    """What a history does to whole sequences, in the cache and in the lists beside it.

    Attributes
    ----------
    case
        Whose cache it is.
    cache
        The cache.
    lists
        What it must hold.
    """

    case: CacheCase
    cache: CacheUnderTest
    lists: Lists

    @abstractmethod
    def refused(self, kind: type[Exception], call: Callable[[], object]) -> None:
        """Check that a call raises an error, and that afterwards everything is as it was."""

    # Forgetting

    def truncate(self, lengths: Array | int) -> bool:
        """Keep the positions below ``lengths`` (``[B]``, or one number)."""
        return self._cut(lambda: self.cache.truncate(lengths), np.broadcast_to(lengths, (self.lists.batch,)))

    def drop(self, count: Array | int) -> bool:
        """Drop the last tokens, counted from what every layer has reached."""
        return self._cut(lambda: self.cache.drop(count), self.lists.least() - count)

    def reset(self) -> None:
        """Forget everything; the sequences stay."""
        self.cache.reset()
        self.lists.arrange([None] * self.lists.batch)
        self.lists.cut(np.zeros(self.lists.batch, np.int64))

    # The list of sequences

    def reorder(self, indices: Array) -> None:
        """Make sequence ``b`` a copy of what was sequence ``indices[b]``."""
        self.cache.reorder(indices)
        self.lists.arrange(indices.tolist())

    def select(self, indices: Sequence[int]) -> None:
        """Keep some sequences, in some order."""
        self.cache.select(list(indices))
        self.lists.arrange(indices)

    def repeat(self, count: int) -> None:
        """Make several of each sequence, copies next to each other."""
        self.cache.repeat(count)
        self.lists.arrange([row for row in range(self.lists.batch) for _ in range(count)])

    def fork(self, sequence: int) -> None:
        """Add a copy of a sequence at the end."""
        self._added(self.cache.fork(sequence), [*range(self.lists.batch), sequence])

    def admit(self, tokens: Sequence[int] | None = None) -> int:
        """Add a sequence at the end, empty or with what is known of a text; gives how many tokens that is."""
        number = self.cache.admit(tokens)
        found = 0 if tokens is None else int(self.cache.counted("next_position")[number])
        rows = self.lists.beginning(tokens or (), found)
        if found and rows is None:
            raise AssertionError(f"the new sequence has {found} tokens, though none was known to begin with {tokens}")
        if found > max(len(tokens or ()) - 1, 0):
            raise AssertionError(f"{found} of {len(tokens or ())} tokens are known, which leaves none to compute with")
        self._added(number, [*range(self.lists.batch), None], rows, shared=True)
        return found

    def remember(self, sequence: int, tokens: Sequence[int]) -> int:
        """Tell which tokens a sequence holds; gives how many of them can be found."""
        found = self.cache.remember(sequence, tokens)
        self.lists.remember(sequence, tokens)
        return found

    def release(self, sequence: int) -> None:
        """Take a sequence out; those behind it move up."""
        self.cache.release(sequence)
        self.lists.arrange([row for row in range(self.lists.batch) if row != sequence])

    # Going back, away and on

    def snapshot(self) -> Moment:
        """Keep the present state; nobody ever lets go of it."""
        pool = self.lists.pool
        moment = Moment(self.cache.snapshot(), self.lists.state, None if pool is None else list(pool.rows))
        if pool is not None:
            pool.snapshots.append(list(pool.rows))
        return moment

    def restore(self, moment: Moment) -> None:
        """Go back to a state."""
        self.cache.restore(moment.thing)
        self.lists.restore(moment.state, moment.pages)

    def offload(self, sequence: int, *, to_file: bool = False) -> Away:
        """Let a sequence leave for memory elsewhere, or for a file; those behind it move up."""
        rows = tuple(rows[sequence] for rows in self.lists.state.layers)
        thing = self.cache.offload(sequence, to_file=to_file)
        self.lists.arrange([row for row in range(self.lists.batch) if row != sequence])
        return Away(thing, rows)

    def resume(self, away: Away) -> bool:
        """Let a sequence come back, at the end."""
        if not self.lists.may_add(away.rows):
            self.refused(ak.CacheCapacityError, lambda: self.cache.resume(away.thing))
            return False
        self._added(self.cache.resume(away.thing), (), away.rows)
        return True

    def _cut(self, call: Callable[[], Any], kept: Array) -> bool:
        done = self._done(ak.ShapeError, call, self.lists.can_cut(kept))
        if done:
            self.lists.cut(kept)
        return done

    def _done(self, kind: type[Exception], call: Callable[[], Any], may: bool | None) -> bool:
        """Make a call that may be made, or must be refused with an error of a class; ``None``: it may be either."""
        if may is False:
            self.refused(kind, call)
            return False
        try:
            call()
        except kind:
            if may is None:
                return False
            raise
        return True

    def _added(self, number: int, source: Rows, rows: tuple[Row, ...] | None = None, *, shared: bool = False) -> None:
        if rows is None:
            self.lists.arrange(source)
        else:
            self.lists.add(rows, shared=shared)
        assert_equal(np.array(number), np.array(self.lists.batch - 1), what="number of the sequence that was added")
