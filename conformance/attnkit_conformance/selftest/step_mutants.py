"""Steps that are wrong on purpose, over a small backend that keeps mirrors of them, as one that captures work does."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import attnkit as ak
from attnkit_conformance.selftest.faults import Mutant, fault
from attnkit_conformance.selftest.faulty_caches import cache_fault
from attnkit_conformance.selftest.plain import Array, Plain


class Held(NamedTuple):
    """Slots that last: of new tokens, ``[B, T]``, or of all tokens, ``[B, S]``."""

    array: Array


class Mirroring(Plain):
    """Reads steps from arrays that last, and takes room for keys that are not there yet."""

    def begin_step(
        self, pages: ak.Pages, tables: ak.StepTables, mirrors: ak.StepMirrors | None
    ) -> ak.StepMirrors | None:
        del pages
        if mirrors is None:
            mirrors = _made(tables)
        self.refresh(mirrors, tables)
        return mirrors

    def refresh(self, mirrors: ak.StepMirrors, tables: ak.StepTables) -> None:
        """Write a step into its mirrors."""
        mirrors.slots.array[...] = tables.slots
        mirrors.table.array[...] = -1
        mirrors.table.array[:, : tables.table.longest] = tables.table.slots
        mirrors.kv_lengths[...] = tables.table.lengths
        mirrors.positions[...] = tables.positions
        if mirrors.query_lengths is not None:
            mirrors.query_lengths[...] = tables.counts
        if mirrors.key_offset is not None:
            mirrors.key_offset[...] = tables.key_offset

    def write(self, plane: Array, slots: Any, tokens: Array) -> None:
        super().write(plane, slots.array if isinstance(slots, Held) else slots, tokens)

    def attend_pages(
        self, query: Array, pages: ak.Pages, table: Any, operands: ak.Operands, plan: ak.Plan
    ) -> ak.AttentionOutput:
        if not isinstance(table, Held):
            return super().attend_pages(query, pages, table, operands, plan)
        key, value = (planes.read(self, table.array) for planes in (pages.key, pages.value))
        return plan.run(query, key, value, operands)


def _made(tables: ak.StepTables) -> ak.StepMirrors:
    batch, room = len(tables.slots), tables.room or 0
    return ak.StepMirrors(
        slots=Held(np.full_like(tables.slots, -1)),
        table=Held(np.full((batch, room), -1, np.int64)),
        kv_lengths=np.zeros(batch, np.int64),
        query_lengths=np.zeros(batch, np.int64) if tables.ragged else None,
        key_offset=None if tables.key_offset is None else np.zeros(batch, np.int64),
        positions=np.zeros_like(tables.positions),
    )


class ReadsStart(Mirroring):
    """Goes on attending to what there was when work was captured."""

    def refresh(self, mirrors: ak.StepMirrors, tables: ak.StepTables) -> None:
        held = mirrors.kv_lengths.copy()
        super().refresh(mirrors, tables)
        if held.any():
            mirrors.kv_lengths[...] = held


class WritesStart(Mirroring):
    """Goes on storing where it stored when work was captured."""

    def refresh(self, mirrors: ak.StepMirrors, tables: ak.StepTables) -> None:
        held = mirrors.slots.array.copy()
        super().refresh(mirrors, tables)
        if (held >= 0).any():
            mirrors.slots.array[...] = held


class AtTheRoom(Mirroring):
    """Takes the first key that is held for the first of all, in a ring too."""

    def refresh(self, mirrors: ak.StepMirrors, tables: ak.StepTables) -> None:
        super().refresh(mirrors, tables)
        if mirrors.key_offset is not None:
            mirrors.key_offset[...] = 0


class WithoutLengths(Mirroring):
    """Takes padding for queries, so that the others stand too early."""

    def refresh(self, mirrors: ak.StepMirrors, tables: ak.StepTables) -> None:
        super().refresh(mirrors, tables)
        if mirrors.query_lengths is not None:
            mirrors.query_lengths[...] = tables.slots.shape[1]


class CountsOnce(ak.KVCache):
    """Counts one token for a step of any number."""

    def begin_step(self, tokens: int = 1, *, lengths: Any = None) -> ak.Step:
        step = super().begin_step(tokens, lengths=lengths)
        if tokens > 1:
            self.drop(np.minimum(tokens - 1, self.next_position))
            step._counters = self.counters
        return step


class NeverEnds(ak.KVCache):
    """Lets a step that is over go on."""

    def begin_step(self, tokens: int = 1, *, lengths: Any = None) -> ak.Step:
        return _Endless(super().begin_step(tokens, lengths=lengths))  # type: ignore[return-value]  # stands in for it


class _Endless:
    def __init__(self, step: ak.Step) -> None:
        self._step = step

    def __getitem__(self, layer: int) -> Any:
        self._step._counters = self._step._cache.counters
        return self._step[layer]


STEP_MUTANTS: tuple[Mutant, ...] = (
    fault("step_reads_what_it_began_with", "TestSteps", ReadsStart),
    fault("step_writes_where_it_began", "TestSteps", WritesStart),
    fault("step_stands_at_the_room", "TestSteps", AtTheRoom),
    fault("step_forgets_lengths", "TestSteps", WithoutLengths),
    cache_fault("step_counts_once", "TestSteps", CountsOnce),
    cache_fault("step_never_ends", "TestSteps", NeverEnds),
)
