"""Attention over pages, wherever the tokens lie in them: against the oracle, and among themselves.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` key head
size, ``E`` value head size.
"""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

import attnkit as ak
from attnkit.call import Described, Options, describe_call
from attnkit.pages import melted
from attnkit.selection import select
from attnkit_numpy import decode, sources
from attnkit_numpy.backend import NumpyBackend

CAUSAL = ak.Mask.causal()
CODECS = ("native", "int8", "int4", "fp8")
PAGED = ("pages", "adrift", "first adrift", "others adrift", "gaps")
LAYOUTS = ("one span", "few spans", "slots", *PAGED, "ring", "in a line")
BACKEND = NumpyBackend()


class Stored(NamedTuple):
    """Tokens in pages, and the same tokens as plain arrays, decoded."""

    pages: ak.Pages
    table: ak.SlotTable
    key: Any
    value: Any


def spans_for(rng: np.random.Generator, layout: str, lengths: list[int], page_size: int) -> ak.SlotTable:
    """Give every sequence slots of its own: in pages, beside the edges of pages, one by one, or all in a row."""
    size = page_size if layout in PAGED else 1 if layout == "slots" else page_size * -(-max([*lengths, 1]) // page_size)
    held = max(size - 1, 1) if layout == "gaps" else size
    counts = [-(-n // held) for n in lengths]
    order = np.arange(sum(counts)) if layout == "in a line" else rng.permutation(sum(counts))
    tables, used = [], 0
    for length, count in zip(lengths, counts, strict=True):
        own, used = order[used : used + count].tolist(), used + count
        adrift = {"adrift": range(count), "first adrift": range(1), "others adrift": range(1, count)}.get(layout, ())
        starts = [(2 if adrift else 1) * number * size + (i in adrift) for i, number in enumerate(own)]
        spans = [(start, start + min(held, length - i * held)) for i, start in enumerate(starts)]
        tables.append(melted(cut(rng, layout, spans)))
    return ak.SlotTable(tuple(tables))


def cut(rng: np.random.Generator, layout: str, spans: list[ak.pages.Span]) -> list[ak.pages.Span]:
    """Cut the only span of a sequence in two or four, and let it begin with the last of them."""
    if layout not in ("few spans", "ring") or not spans:
        return spans
    (start, stop) = spans[0]
    edges = sorted(rng.integers(start, stop + 1, 1 if layout == "ring" else 3).tolist())
    parts = list(zip([start, *edges], [*edges, stop], strict=True))
    return parts[::-1]


def store(
    arrays: list[Any], lengths: list[int], layout: str, *, page_size: int = 4, codec: str = "native", dtype: str | None
) -> Stored:
    """Store keys ``[B, K, S, D]`` and values among slots that hold NaN, or any codes with scales of NaN."""
    table = spans_for(np.random.default_rng(len(lengths)), layout, lengths, page_size)
    slots = page_size * -(-max([stop for spans in table.spans for _, stop in spans], default=1) // page_size)
    kind = ak.Codec.model_validate(codec)
    halves = []
    for array in arrays:
        name = array.dtype.name if dtype is None else dtype
        planes = [
            BACKEND.allocate((array.shape[1], slots, width), kept) for width, kept in kind.planes(array.shape[3], name)
        ]
        for plane in planes:
            plane[...] = 77 if plane.dtype in (np.int8, np.uint8) else np.nan
        half = ak.Planes(tuple(planes), kind, array.shape[3], name)
        half.write(BACKEND, table.slots, array[:, :, : table.longest])
        halves.append(half)
    copies = (half.decode(ak.Backend.gather(BACKEND, plane, table.slots) for plane in half.arrays) for half in halves)
    return Stored(ak.Pages(halves[0], halves[1], page_size), table, *copies)


def attend(stored: Stored, query: Any, options: dict[str, Any], path: str, sequence: int | None = None) -> Any:
    """Attend over pages; over those of one sequence alone, where asked for."""
    table = stored.table if sequence is None else stored.table.row(sequence)
    query = query if sequence is None else query[sequence : sequence + 1]
    lengths = table.lengths
    if (lengths != table.longest).any():
        options = {**options, "kv_lengths": lengths}
    names = (
        "mask",
        "scale",
        "softcap",
        "bias",
        "alibi",
        "sinks",
        "query_lengths",
        "kv_lengths",
        "query_offset",
        "key_offset",
    )
    described = Options(*(options.get(name) for name in names))
    shapes = [
        Described((len(lengths), half.arrays[0].shape[0], table.longest, half.size), half.dtype)
        for half in (stored.pages.key, stored.pages.value)
    ]
    request, operands = describe_call(query, *shapes, described, True, cached=True)
    return BACKEND.attend_pages(query, stored.pages, table, operands, select(request, f"numpy:{path}").plan)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read even the shortest sequences where they lie, in chunks of a few blocks."""
    monkeypatch.setattr(sources, "_LEAST", 0)
    monkeypatch.setattr(sources, "_CHUNK", 1200)


def draw(calls: Any, seed: int) -> tuple[Any, Stored]:
    """Draw a call, and how its keys and values are stored; every length occurs, and the longest sequence is ``S``."""
    rng = np.random.default_rng([seed, 1])
    query, key, value = (case := calls.draw_case(seed)).arrays
    options = dict(case.options)
    lengths = np.full(len(key), key.shape[2])
    if options.pop("kv_lengths", None) is not None or rng.random() < 0.5:
        lengths = rng.integers(0, key.shape[2] + 1, len(key))
        lengths[rng.integers(len(key))] = key.shape[2]
        options["kv_lengths"] = lengths
    narrow = query.dtype in (np.float32, np.float64) and rng.random() < 0.4
    stored = store(
        [key, value],
        lengths.tolist(),
        str(rng.choice(LAYOUTS)),
        page_size=int(rng.choice([1, 3, 16])),
        codec=str(rng.choice(CODECS)),
        dtype=str(rng.choice(["float16", "bfloat16"])) if narrow else None,
    )
    decoded = (array.astype(query.dtype) for array in (stored.key, stored.value))
    return calls.Case([query, *decoded], options), stored


@pytest.mark.parametrize("seed", range(1000, 1200))
@pytest.mark.usefixtures("small_tiles", "in_place")
def test_random_calls(calls: Any, seed: int) -> None:
    case, stored = draw(calls, seed)
    for path in calls.paths_for(case):
        calls.check(case, attend(stored, case.arrays[0], case.options, path))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("in_place")
def test_parts_of_a_source(calls: Any, layout: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, *arrays = calls.draw(rng, "normal", (3, 1, 4, 1, 70, 8, 5), "float32")
    codec = CODECS[seed % 4]
    stored = store(arrays, [70, int(rng.integers(70)), 33], layout, page_size=4, codec=codec, dtype=None)
    table = ak.SlotTable((*stored.table.spans, ((0, 1), (2, 3))))  # whatever lies there: no view shows all four
    found = sources.keys_in(stored.pages, table, BACKEND, in_place=True)
    for source, whole in zip(found, (stored.key, stored.value), strict=True):
        assert isinstance(source, sources.Source)
        np.testing.assert_array_equal(source[:3, :, :].whole(), whole)
        first, last = sorted(rng.integers(0, 71, 2).tolist())
        place = slice(int(rng.integers(3)), 3), slice(1, int(rng.integers(2, 5))), slice(first, last)
        part = source[place]
        assert part.shape == whole[place].shape
        np.testing.assert_array_equal(part.whole(), whole[place])


@pytest.mark.parametrize("seed", range(1200, 1230))
def test_random_calls_that_are_copied_whole(calls: Any, seed: int) -> None:
    case, stored = draw(calls, seed)
    for path in calls.paths_for(case):
        calls.check(case, attend(stored, case.arrays[0], case.options, path))


OPTIONS: dict[str, dict[str, Any]] = {
    "all keys": {},
    "causal": {"mask": CAUSAL},
    "window": {"mask": ak.Mask.window(1500)},
    "chunks and sinks": {"mask": ak.Mask.chunked(1024) & CAUSAL, "sinks": np.linspace(-2, 2, 4, dtype=np.float32)},
    "ALiBi and soft-cap": {"mask": CAUSAL, "alibi": np.array([0.5, 0.1, 0.02, 0], np.float32), "softcap": 3.0},
}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", ["pages", "ring"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_several_blocks(calls: Any, layout: str, codec: str, rows: int, options: dict[str, Any]) -> None:
    """With the blocks and chunks that are used, and lengths that are no multiple of any."""
    rng = np.random.default_rng(rows)
    query, *arrays = calls.draw(rng, "normal", (2, 4, 2, rows, 5003, 64, 40), "float32")
    stored = store(arrays, [5003, 4100], layout, page_size=16, codec=codec, dtype=None)
    found = attend(stored, query, options, "decode")
    calls.check(calls.Case([query, stored.key, stored.value], {**options, "kv_lengths": np.array([5003, 4100])}), found)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_where_tokens_lie(calls: Any, rows: int, dtype: str) -> None:
    query, *arrays = calls.draw(np.random.default_rng(0), "normal", (3, 4, 2, rows, 4500, 32, 32), dtype)
    found = [
        attend(store(arrays, [4500, 2300, 1], layout, page_size=size, dtype=None), query, {"mask": CAUSAL}, "decode")
        for layout, size in [
            ("in a line", 4500),
            ("one span", 16),
            ("few spans", 1),
            ("slots", 1),
            ("pages", 16),
            ("ring", 1),
        ]
    ]
    for other in found[1:]:
        calls.assert_same_bits(found[0], other)


@pytest.mark.parametrize("layout", ["one span", "pages", "ring"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "lengths", [[2600, 2600, 2600], [2600, 700, 2049], [300, 20, 0]], ids=["equal", "ragged", "short"]
)
def test_a_sequence_alone_and_in_a_batch(calls: Any, layout: str, codec: str, lengths: list[int]) -> None:
    query, *arrays = calls.draw(np.random.default_rng(1), "normal", (3, 6, 2, 1, max(lengths), 64, 64), "float32")
    stored = store(arrays, lengths, layout, page_size=16, codec=codec, dtype=None)
    together = attend(stored, query, {"mask": CAUSAL}, "decode")
    for b in range(3):
        alone = attend(stored, query, {"mask": CAUSAL}, "decode", b)
        calls.assert_same_bits(alone, ak.AttentionOutput(together.output[b : b + 1], together.lse[b : b + 1]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["native", "int8"])
@pytest.mark.parametrize("poison", [np.nan, -np.inf, 3e38])
@pytest.mark.usefixtures("small_tiles", "in_place")
def test_hidden_keys_change_no_bit(calls: Any, path: str, layout: str, codec: str, poison: float) -> None:
    query, *arrays = calls.draw(np.random.default_rng(2), "normal", (2, 4, 2, 3, 90, 16, 12), "float32")
    options = {"mask": ak.Mask.window(20)}
    clean = attend(store(arrays, [90, 60], layout, codec=codec, dtype=None), query, options, path)
    for array in arrays:
        array[0, :, :60] = poison
        array[1, :, :30] = poison
    found = attend(store(arrays, [90, 60], layout, codec=codec, dtype=None), query, options, path)
    calls.assert_same_bits(clean, found)


@pytest.mark.parametrize("codec", ["native", "int8"])
@pytest.mark.usefixtures("small_tiles", "in_place")
def test_rows_that_do_not_see_a_key_do_not_feel_it(calls: Any, codec: str) -> None:
    query, *arrays = calls.draw(np.random.default_rng(3), "normal", (2, 4, 2, 3, 90, 16, 12), "float32")
    clean = attend(store(arrays, [90, 60], "pages", codec=codec, dtype=None), query, {"mask": CAUSAL}, "decode")
    arrays[1][0, 1, 89] = np.nan  # the last row of query heads 2 and 3 of the first sequence sees it
    found = attend(store(arrays, [90, 60], "pages", codec=codec, dtype=None), query, {"mask": CAUSAL}, "decode")
    lost = np.isnan(found.output).any(axis=-1)
    np.testing.assert_array_equal(np.argwhere(lost), [[0, 2, 2], [0, 3, 2]])
    assert found.output[~lost].tobytes() == clean.output[~lost].tobytes()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.usefixtures("in_place")
def test_no_warning_leaves_the_slots_of_others(calls: Any, codec: str) -> None:
    query, *arrays = calls.draw(np.random.default_rng(4), "normal", (1, 8, 8, 1, 2000, 64, 64), "float32")
    arrays[1][0, :, :1000] = 3e38
    stored = store(arrays, [2000], "pages", page_size=16, codec=codec, dtype="float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attend(stored, query, {"mask": ak.Mask.window(900)}, "decode")
    assert np.isfinite(found.output).all()


@pytest.mark.parametrize("codec", CODECS)
def test_decoding_allocates_no_copy_of_the_history(codec: str) -> None:
    tokens, page_size = 65_536, 16
    key = np.random.default_rng(5).standard_normal((1, 2, tokens, 64)).astype(np.float32)
    stored = store([key, key], [tokens], "pages", page_size=page_size, codec=codec, dtype=None)
    query = key[:, :, :1]
    assert len(stored.table.spans[0]) > tokens // page_size // 2
    assert stored.table.slots.shape == (1, tokens)
    tracemalloc.start()
    try:
        attend(stored, query, {"mask": CAUSAL}, "decode")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * key.nbytes / 8


def test_what_lies_in_a_row_is_not_copied(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring copies the block that its end falls into, and sequences in one span each copy nothing."""
    taken: list[int] = []
    take = sources.Trail.read

    def spy(trail: Any, plane: Any, start: int, stop: int) -> Any:
        found = take(trail, plane, start, stop)
        taken.append(0 if np.shares_memory(found, plane) else stop - start)
        return found

    monkeypatch.setattr(sources.Trail, "read", spy)
    query, *arrays = calls.draw(np.random.default_rng(6), "normal", (2, 2, 2, 1, 9000, 32, 32), "float32")
    attend(store(arrays, [9000, 8000], "one span", page_size=16, dtype=None), query, {}, "decode")
    assert taken
    assert not any(taken)
    taken.clear()
    attend(store(arrays, [9000, 9000], "ring", page_size=16, dtype=None), query, {}, "decode")
    assert 0 < sum(taken) <= 4 * decode.BLOCK


@pytest.mark.parametrize("layout", ["contiguous", "ring", "paged"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.usefixtures("in_place")
def test_caches_of_every_layout(calls: Any, path: str, layout: str, codec: str) -> None:
    """Sequences that join, leave and are forked lie anywhere."""
    own = {"contiguous": {}, "ring": {"window": 30, "max_append": 7}, "paged": {"page_size": 3}}[layout]
    config = ak.KVCacheConfig(
        batch_size=2, num_kv_heads=2, head_dim=16, value_dim=12, codec=codec, layout=layout, **own
    )
    cache = ak.make_cache(config, backend=f"numpy:{path}")
    rng = np.random.default_rng(7)
    for step in range(20):
        if step == 5:
            cache.fork(0)
        if step == 9:
            cache.release(1)
        shape = (cache.batch_size, 2, int(rng.integers(1, 8)))
        lengths = rng.integers(1, shape[2] + 1, shape[0])
        key, value = (rng.standard_normal((*shape, size)).astype(np.float32) for size in (16, 12))
        cache[0].append(key, value, lengths=lengths)
    key, value = cache[0].read()
    query = rng.standard_normal((cache.batch_size, 4, 2, 16)).astype(np.float32)
    options = {"mask": ak.Mask.window(20)}
    found = cache[0].attend_with_lse(query, **options)
    calls.check(calls.Case([query, key, value], {**options, "kv_lengths": cache[0].stored}), found)
