"""Slots, spans, and the storage primitives that every backend inherits (C8, C9)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit.cache.storage import fresh_pages
from attnkit.pages import melted, runs


def table(*spans):
    return ak.SlotTable(tuple(spans))


@pytest.mark.parametrize(
    ("spans", "slots"),
    [
        ([((0, 3),), ((4, 5),)], [[0, 1, 2], [4, -1, -1]]),
        ([((4, 6), (0, 1)), ((2, 4),)], [[4, 5, 0], [2, 3, -1]]),
        ([((6, 9), (3, 4))], [[6, 7, 8, 3]]),  # a ring that has come round
        ([()], [[]]),
        ([(), ()], [[], []]),
        ([], np.zeros((0, 0)).tolist()),
    ],
)
def test_slots_are_the_spans_in_order(spans, slots) -> None:
    found = table(*spans)
    assert found.slots.tolist() == slots
    assert found.lengths.tolist() == [sum(stop - start for start, stop in row) for row in spans]
    assert found.longest == max(found.lengths.tolist(), default=0)
    for sequence, row in enumerate(spans):
        assert found.row(sequence).spans == (row,)


@pytest.mark.parametrize(
    ("spans", "stride"),
    [
        ([((0, 3),), ((4, 6),), ((8, 12),)], (0, 4)),
        ([((5, 9),)], (5, 4)),
        ([((2, 3),), ((5, 6),)], (2, 3)),
        ([((4, 6),), ((0, 2),)], None),  # backwards
        ([((0, 3),), ((2, 4),)], None),  # nearer than the longest is long
        ([((0, 2),), ((4, 6),), ((9, 10),)], None),
        ([((0, 2), (3, 4)), ((8, 9),)], None),
        ([((0, 2),), ()], None),
        ([()], None),
        ([], None),
    ],
)
def test_stride_of_sequences_at_equal_distances(spans, stride) -> None:
    assert table(*spans).stride == stride


def test_spans_melt_where_one_follows_the_other() -> None:
    assert melted([(0, 2), (2, 2), (2, 5), (7, 7), (6, 8), (0, 1)]) == ((0, 5), (6, 8), (0, 1))
    assert melted([]) == ()


@pytest.mark.parametrize("seed", range(16))
def test_runs_are_the_slots_again(seed) -> None:
    rng = np.random.default_rng(seed)
    slots = rng.integers(-1, 12, (3, rng.integers(0, 7)))
    for sequence in range(3):  # consecutive stretches with holes, as caches have them
        if seed % 2 and slots.shape[1]:
            slots[sequence] = np.where(rng.random(slots.shape[1]) < 0.2, -1, np.arange(slots.shape[1]) + 3 * sequence)
    again = np.full_like(slots, -1)
    for sequence, start, stop, slot in runs(slots):
        assert start < stop
        assert slot >= 0
        assert (again[sequence, start:stop] == -1).all()
        again[sequence, start:stop] = slot + np.arange(stop - start)
    assert (again == slots).all()


def test_runs_are_as_long_as_can_be() -> None:
    assert list(runs(np.array([[4, 5, 6, 2, 3, -1]]))) == [(0, 0, 3, 4), (0, 3, 5, 2)]
    assert list(runs(np.array([[6], [-1]]))) == [(0, 0, 1, 6)]
    assert list(runs(np.full((2, 3), -1))) == []


@pytest.fixture
def pages(kit):
    """Fifteen slots, three a page, in a backend that inherits everything."""
    return fresh_pages(kit.Plain(), ak.KVCacheConfig(num_kv_heads=2, head_dim=4, value_dim=6), 15, 3)[0]


def test_fresh_pages(pages) -> None:
    assert [plane.shape for plane in pages.planes] == [(2, 15, 4), (2, 15, 6)]
    assert (pages.page_size, pages.slots, pages.nbytes) == (3, 15, 15 * 2 * 10 * 4)
    assert (pages.key.dtype, pages.key.size, pages.value.size, pages.key.is_native) == ("float32", 4, 6, True)
    assert not any(plane.any() for plane in pages.planes)


def test_scales_count_as_memory(kit) -> None:
    config = ak.KVCacheConfig(num_kv_heads=2, head_dim=4, value_dim=6, key_codec="int8")
    (pages,) = fresh_pages(kit.Plain(), config, 15, 3)
    assert [plane.shape for plane in pages.planes] == [(2, 15, 4), (2, 15, 2), (2, 15, 6)]
    assert pages.nbytes == 15 * 2 * (4 + 2 * 4 + 6 * 4)
    assert config.bytes_per_token * 15 == pages.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("holder", ["plain", "numpy"])
def test_write_then_gather(kit, draw, dtype, holder) -> None:
    backend, tokens = kit.Plain() if holder == "plain" else ak.get_backend("numpy"), draw(2, 2, 4, 6, dtype=dtype)
    plane = backend.allocate((2, 15, 6), "float32")
    slots = np.array([[2, 3, 4, -1], [12, -1, 14, 0]])
    backend.write(plane, slots, tokens)
    found = backend.gather(plane, slots)
    assert found.dtype == np.float32
    assert (found == np.where((slots >= 0)[:, None, :, None], tokens.astype(np.float32), 0)).all()
    assert not backend.gather(plane, np.array([[1, 5, 6, 13]])).any()
    found[...] = np.nan  # it is a copy
    assert np.isfinite(plane).all()


@pytest.mark.parametrize("codec", ["native", "int8", "int4/2", "fp8"])
def test_pages_are_copied_bit_for_bit(kit, draw, codec) -> None:
    backend = kit.Plain()
    config = ak.KVCacheConfig(num_kv_heads=2, head_dim=4, value_dim=6, codec=codec)
    (old,), (new,) = fresh_pages(backend, config, 15, 3), fresh_pages(backend, config, 9, 3)
    source, target = np.array([[3, 4, -1], [14, 0, 1]]), np.array([[0, 1, -1], [8, 2, 3]])
    old.key.write(backend, source, draw(2, 2, 3, 4))
    old.value.write(backend, source, draw(2, 2, 3, 6))
    old.copy(backend, source, new, target)
    for half, other in ((old.key, new.key), (old.value, new.value)):
        assert half.read(backend, source).tobytes() == other.read(backend, target).tobytes()
    assert not any(plane[:, 4:8].any() for plane in new.planes)


@pytest.mark.parametrize(
    "spans",
    [
        [((0, 3),), ((3, 6),)],
        [((0, 3),), ((3, 4),)],
        [((12, 14),), ((6, 8),)],
        [((9, 12), (0, 2)), ((3, 6), (12, 13))],
        [((9, 12), (0, 2)), ((9, 12), (3, 4))],  # a shared prefix
        [(), ((3, 5),)],
    ],
)
@pytest.mark.parametrize("codec", ["native", "int8"])
@pytest.mark.parametrize("backend", ["plain", "numpy"])
def test_attention_over_pages_where_they_lie(kit, draw, backend, spans, codec) -> None:
    holder = kit.Plain() if backend == "plain" else ak.get_backend(backend)
    config = ak.KVCacheConfig(num_kv_heads=2, head_dim=4, value_dim=6, dtype="float64", codec=codec)
    (pages,) = fresh_pages(holder, config, 15, 3)
    pages.key.write(holder, np.arange(15)[None], draw(1, 2, 15, 4))
    pages.value.write(holder, np.arange(15)[None], draw(1, 2, 15, 6))
    where, query = table(*spans), draw(2, 4, 2, 4)
    key, value = pages.key.read(holder, where.slots), pages.value.read(holder, where.slots)
    options = {"mask": ak.Mask.causal(), "kv_lengths": where.lengths}
    expected = ak.attention_with_lse(query, key, value, **options, backend=holder)
    dead = np.ones(15, bool)
    dead[where.slots[where.slots >= 0]] = False
    for plane in pages.planes:
        plane[:, dead] = np.nan if plane.dtype.kind == "f" else 99

    request = ak.explain(query, key, value, **options, lse=True, backend=holder).request
    plan = holder.plan(request, holder.preference(request)[0])
    operands = ak.Operands(2, where.longest, kv_lengths=where.lengths)
    output, lse = holder.attend_pages(query, pages, where, operands, plan)
    np.testing.assert_allclose(output, expected.output, atol=1e-12)
    np.testing.assert_allclose(lse, expected.lse, atol=1e-12)
