"""The schedule against the masks that it sums up: no key is lost, no hidden key is taken for a visible one.

Axes: ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


def draw(seed: int) -> tuple[ak.Mask | None, ak.Schedule]:
    """Draw a mask and its schedule, positions and tile sizes of any kind."""
    rng = np.random.default_rng(seed)
    rows, keys = int(rng.integers(1, 30)), int(rng.integers(0, 40))
    terms = []
    if rng.random() < 0.4:
        terms.append(CAUSAL)
    elif rng.random() < 0.4:
        terms.append(ak.Mask.prefix(int(rng.integers(0, 45))))
    if rng.random() < 0.4:
        terms.append(ak.Mask.window(rng.choice([None, 1, 2, 5, 30]), rng.choice([None, 0, 1, 6])))
    terms += [ak.Mask.chunked(int(rng.integers(1, 20))) for _ in range(rng.integers(0, 3)) if rng.random() < 0.5]
    if rng.random() < 0.25:
        ids = np.sort if rng.random() < 0.5 else np.asarray
        terms.append(ak.Mask.documents(ids(rng.integers(0, 4, rows)), ids(rng.integers(0, 4, keys))))
    if rng.random() < 0.25:
        shape = (1 if rng.random() < 0.3 else rows, 1 if rng.random() < 0.3 else keys)
        terms.append(ak.Mask.dense(rng.random(shape) < rng.choice([0.02, 0.5, 0.98])))
    mask: ak.Mask | None = None
    for term in terms:
        mask = term if mask is None else mask & term
    schedule = ak.Schedule(
        ak.MaskStructure() if mask is None else mask.structure,
        rows,
        keys,
        int(rng.integers(-20, 50)),
        int(rng.integers(-10, 10)),
        int(rng.integers(1, 12)),
        int(rng.integers(1, 15)),
        documents=() if mask is None else mask.document_ids,
        dense=() if mask is None else mask.dense_arrays,
    )
    return mask, schedule


def truth(mask: ak.Mask | None, schedule: ak.Schedule) -> Any:
    """Give what the schedule is about, ``[T, S]``."""
    if mask is None:
        return np.ones((schedule.query_length, schedule.key_length), bool)
    return mask.as_array(
        schedule.query_length,
        schedule.key_length,
        query_offset=schedule.query_position,
        key_offset=schedule.key_position,
    )


@pytest.mark.parametrize("block", range(10))
def test_tiles_put_together_give_the_mask(block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        mask, schedule = draw(seed)
        shown = np.zeros((schedule.query_length, schedule.key_length), bool)
        for start, stop in schedule.rows():
            for tile in schedule.tiles(start, stop):
                part = shown[start:stop, tile.start : tile.stop]
                assert not part.any(), "tiles overlap"
                part[...] = ~schedule.hidden(start, stop, tile)
        np.testing.assert_array_equal(shown, truth(mask, schedule))


@pytest.mark.parametrize("block", range(10))
def test_what_a_tile_says_of_itself(block: int) -> None:
    """Its core is seen by all rows, unless arrays hide some of it; positional masks have no tile without a key."""
    for seed in range(60 * block, 60 * (block + 1)):
        mask, schedule = draw(seed)
        full = truth(mask, schedule)
        positional = not (schedule.documents or schedule.dense)
        for start, stop in schedule.rows():
            tiles = list(schedule.tiles(start, stop))
            assert all(later.stop <= tile.start for tile, later in pairwise(tiles))
            for tile in tiles:
                part = full[start:stop, tile.start : tile.stop]
                assert 0 < tile.stop - tile.start <= schedule.tile_keys
                assert tile.start <= tile.core_start <= tile.core_stop <= tile.stop
                if not tile.masked:
                    assert full[start:stop, tile.core_start : tile.core_stop].all()
                assert tile.kind == "partial" or part.all()
                if positional:
                    assert not tile.masked
                    assert part.any()
                    assert (tile.kind == "full") == part.all()


@pytest.mark.parametrize("block", range(10))
def test_kind_of_any_tile(block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        mask, schedule = draw(seed)
        full, rng = truth(mask, schedule), np.random.default_rng(seed)
        if not schedule.key_length:
            continue
        for _ in range(8):
            start, first = int(rng.integers(schedule.query_length)), int(rng.integers(schedule.key_length))
            stop = int(rng.integers(start + 1, schedule.query_length + 1))
            last = int(rng.integers(first + 1, schedule.key_length + 1))
            part = full[start:stop, first:last]
            exact = "full" if part.all() else "partial" if part.any() else "empty"
            kind = schedule.kind((start, stop), (first, last))
            if schedule.documents or schedule.dense:
                assert kind in (exact, "partial")
            else:
                assert kind == exact


def test_keys_of_positional_masks_are_the_union_and_the_core() -> None:
    for seed in range(600):
        mask, schedule = draw(seed)
        if schedule.documents or schedule.dense:
            continue
        full = truth(mask, schedule)
        for start, stop in schedule.rows():
            first, last, core_first, core_last = schedule.keys_of(start, stop)
            union, core = full[start:stop].any(axis=0), full[start:stop].all(axis=0)
            np.testing.assert_array_equal(np.flatnonzero(union), np.arange(first, last))
            np.testing.assert_array_equal(np.flatnonzero(core), np.arange(core_first, core_last))


def test_tiles_come_from_the_last_key_on() -> None:
    schedule = ak.Schedule(CAUSAL.structure, 8, 8, 0, tile_queries=4, tile_keys=3)
    assert [(tile.start, tile.stop) for tile in schedule.tiles(4, 8)] == [(5, 8), (2, 5), (0, 2)]


@pytest.mark.parametrize(
    ("mask", "most"),
    [(CAUSAL, 0.57), (ak.Mask.window(64), 0.13), (ak.Mask.chunked(128), 0.13), (CAUSAL & ak.Mask.chunked(128), 0.13)],
    ids=str,
)
def test_hidden_tiles_are_left_out(mask: ak.Mask, most: float) -> None:
    schedule = ak.Schedule(mask.structure, 1024, 1024, 0, tile_queries=64, tile_keys=64)
    visited = sum(
        (stop - start) * (tile.stop - tile.start)
        for start, stop in schedule.rows()
        for tile in schedule.tiles(start, stop)
    )
    assert visited <= most * 1024 * 1024


def test_documents_end_to_end_leave_a_block_diagonal() -> None:
    ids = np.repeat(np.arange(8), 128)
    schedule = ak.Schedule(
        ak.Mask.documents(ids, ids).structure, 1024, 1024, 0, tile_queries=128, tile_keys=128, documents=((ids, ids),)
    )
    for start, stop in schedule.rows():
        assert list(schedule.tiles(start, stop)) == [ak.Tile(start, stop, start, stop)]


def test_padding_belongs_to_no_tile() -> None:
    schedule = ak.Schedule(ak.MaskStructure(), 0, 5, 0)
    assert list(schedule.rows()) == []
    schedule = ak.Schedule(ak.MaskStructure(), 3, 0, 0)
    assert [list(schedule.tiles(*rows)) for rows in schedule.rows()] == [[]]
