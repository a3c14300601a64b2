"""Steps of a cache as kernels read them: arrays that last, so that a captured CUDA graph finds new contents in them.

Axes: ``B`` sequences, ``T`` new tokens, ``P`` pages of a sequence.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from attnkit import StepMirrors, StepTables

Array = Any


class PageTable(NamedTuple):
    """Which slots the tokens of each sequence lie in.

    Attributes
    ----------
    first_slots
        ``int32 [B, P]``: the slot of the first token of each page.
    start
        ``int64 [B]``: places of the first page that come before the first token; ``None``: none.
    page_size
        Tokens of a page, which lie in a row.
    """

    first_slots: Array
    start: Array | None
    page_size: int


class StepSlots(NamedTuple):
    """Slots of the new tokens, ``int64 [B, T]``, on the device."""

    array: Array


class StepTable(NamedTuple):
    """The pages of a step, and its integers behind each other, ``int64``; the other mirrors are parts of these."""

    pages: PageTable
    integers: Array


def mirrored(xp: Any, tables: StepTables, mirrors: StepMirrors | None) -> StepMirrors:
    """Write a step into its mirrors, or into new ones; two transfers in all."""
    pages, integers = _first_slots(tables), _integers(tables)
    if mirrors is None:
        return _made(tables, StepTable(PageTable(xp.array(pages), None, tables.page_size), xp.array(integers)))
    mirrors.table.pages.first_slots[...] = xp.asarray(pages)
    mirrors.table.integers[...] = xp.asarray(integers)
    return mirrors


def _made(tables: StepTables, table: StepTable) -> StepMirrors:
    """Give the mirrors whose integers are parts of one array."""
    batch, tokens = tables.slots.shape
    lengths, counts, offset = (table.integers[n * batch : (n + 1) * batch] for n in range(3))
    slots, positions = table.integers[3 * batch :].reshape(2, batch, tokens)
    return StepMirrors(
        slots=StepSlots(slots),
        table=table,
        kv_lengths=lengths,
        query_lengths=counts if tables.ragged else None,
        key_offset=None if tables.key_offset is None else offset,
        positions=positions,
    )


def _integers(tables: StepTables) -> np.ndarray[Any, np.dtype[np.int64]]:
    offset = np.zeros_like(tables.counts) if tables.key_offset is None else tables.key_offset
    rows = tables.table.lengths, tables.counts, offset, tables.slots.ravel(), tables.positions.ravel()
    return np.concatenate(rows).astype(np.int64, copy=False)


def _first_slots(tables: StepTables) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Give the slot of the first token of each page, ``[B, P]``; 0 for pages that no token lies in."""
    size = tables.page_size
    found = np.zeros((len(tables.table.spans), max(-(-(tables.room or 0) // size), 1)), np.int32)
    for row, spans in zip(found, tables.table.spans, strict=True):
        slots = list(chain.from_iterable(range(start, stop, size) for start, stop in spans))
        row[: len(slots)] = slots
    return found
