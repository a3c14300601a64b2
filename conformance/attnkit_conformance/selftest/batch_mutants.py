"""Lists of sequences that are wrong on purpose: which rows move, what a copy takes along, what a snapshot keeps."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.cache import PagedCache
from attnkit.cache.pieces import PieceCache, Pieces
from attnkit_conformance.selftest.faulty_caches import cache_fault as fault
from attnkit_conformance.selftest.plain import Array


class LastMovesIn(ak.KVCache):
    """Fills the place of a released sequence with the last one."""

    def release(self, sequence: int) -> None:
        rows = list(range(self.batch_size))
        if 0 <= sequence < len(rows) - 1:
            rows[sequence] = rows.pop()
            self._arrange(rows)
        else:
            super().release(sequence)


class Tiled(ak.KVCache):
    """Repeats the batch as a whole, and not each sequence."""

    def repeat(self, count: int) -> None:
        self._arrange([*range(self.batch_size)] * count)


class Sorted(ak.KVCache):
    """Selects sequences in the order in which they stand."""

    def select(self, indices: Array) -> None:
        super().select(sorted(indices))


class AdmitsACopy(ak.KVCache):
    """Lets a new sequence begin with what the last one holds."""

    def admit(self, tokens: Sequence[int] | None = None) -> int:
        return self.fork(self.batch_size - 1) if self.batch_size else super().admit(tokens)


class RowsWrap(ak.KVCache):
    """Counts sequences that are not there from the end, or round and round."""

    def release(self, sequence: int) -> None:
        super().release(sequence % max(self.batch_size, 1))

    def fork(self, sequence: int) -> int:
        return super().fork(sequence % max(self.batch_size, 1))


class ForkWithoutValues(PieceCache):
    """Copies keys, and lets the values of a fork be zeros."""

    def fork(self, sequence: int) -> int:
        number = super().fork(sequence)
        for layer, pages in zip(self, self.pages, strict=True):
            slots = layer.table().slots[number:]
            shape = 1, self.config.num_kv_heads, slots.shape[1], self.config.value_dim
            pages.value.write(self.backend, slots, np.zeros(shape, np.float32))
        return number


class AliasedSnapshot(PieceCache):
    """Keeps its storage for a snapshot, and goes on writing into it."""

    def hold(self) -> Pieces:
        return self.pieces


class UncountedSnapshot(PagedCache):
    """Writes down the pages of a snapshot, and lets others have them."""

    def hold(self) -> Any:
        return SimpleNamespace(rows=self.rows)

    def put_back(self, held: Any) -> None:
        free = self.pool.take(self.pool.free)  # a page that nobody has cannot be shared
        super().put_back(held)
        self.pool.give_back([tuple(free)])


class CountersStay(ak.KVCache):
    """Brings back what was stored, and counts what it counted."""

    def restore(self, snapshot: ak.Snapshot) -> None:
        super().restore(snapshot._replace(counters=self.counters))


class TokensStay(ak.KVCache):
    """Brings back the counters of a snapshot, and leaves the tokens as they are."""

    def put_back(self, held: Any) -> None:
        pass


class RestoresOnce(PieceCache):
    """Takes the storage of a snapshot over, so that there is nothing to restore a second time."""

    def put_back(self, held: Pieces) -> None:
        self.become(held)


class HalfTold(ak.KVCache):
    """Tells the bytes of keys alone."""

    @property
    def nbytes(self) -> int:
        return sum(pages.key.nbytes for pages in self.pages)


BATCH_MUTANTS = [
    fault("release_moves_the_last", "TestBatch::test_it_is_a_list", LastMovesIn),
    fault("repeat_tiles", "TestBatch::test_it_is_a_list", Tiled),
    fault("select_ignores_order", "TestBatch::test_it_is_a_list", Sorted),
    fault("admit_copies", "TestBatch::test_coming_and_going", AdmitsACopy),
    fault("rows_wrap", "TestBatch::test_rows_that_are_not_there", RowsWrap),
    fault("fork_without_values", "TestForks::test_copies_diverge", ForkWithoutValues),
    fault("snapshot_aliases", "TestSnapshots::test_going_back", AliasedSnapshot),
    fault("snapshot_holds_no_pages", "TestSnapshots::test_going_back", UncountedSnapshot),
    fault("restore_forgets_counters", "TestSnapshots::test_going_back", CountersStay),
    fault("restore_forgets_tokens", "TestSnapshots::test_across_a_ring", TokensStay),
    fault("restore_works_once", "TestSnapshots::test_across_a_ring", RestoresOnce),
    fault("nbytes_of_keys", "TestCacheBytes::test_memory_is_told_in_advance", HalfTold),
]
