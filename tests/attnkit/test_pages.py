"""Slots, page tables, and the storage primitives that every backend inherits (C8, C9)."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit.pages import runs


def table(index, start):
    return ak.PageTable(np.array(index), np.array(start))


@pytest.mark.parametrize(
    ("index", "start", "lengths", "page_size", "slots"),
    [
        ([[0], [1]], [0, 0], [3, 1], 4, [[0, 1, 2], [4, -1, -1]]),
        ([[2, 0], [1, -1]], [0, 0], [3, 2], 2, [[4, 5, 0], [2, 3, -1]]),
        ([[0, 2, 1]], [3], [4], 3, [[6, 7, 8, 3]]),  # three dead slots in front, as in a ring
        ([[5]], [1], [0], 4, [[]]),
        ([[0], [1]], [0, 0], [0, 0], 0, [[], []]),
    ],
)
def test_slots_of_live_tokens(index, start, lengths, page_size, slots) -> None:
    found = table(index, start).slots(np.array(lengths), page_size)
    assert found.tolist() == slots


@pytest.mark.parametrize(
    ("index", "start", "contiguous"),
    [
        ([[0], [1], [2]], [0, 0, 0], True),
        ([[0], [2], [1]], [0, 0, 0], False),
        ([[0], [1], [2]], [0, 1, 0], False),
        ([[0, 1], [2, 3]], [0, 0], False),
        ([[1]], [0], False),
        (np.zeros((0, 1), int), np.zeros(0, int), True),
    ],
)
def test_contiguous_is_page_b_for_sequence_b(index, start, contiguous) -> None:
    assert table(index, start).is_contiguous is contiguous


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("seed", range(8))
def test_runs_are_the_slots_again(page_size, seed) -> None:
    rng = np.random.default_rng(seed)
    slots = rng.integers(-1, 12, (3, rng.integers(0, 7)))
    for sequence in range(3):  # consecutive stretches with holes, as caches have them
        if seed % 2 and slots.shape[1]:
            slots[sequence] = np.where(rng.random(slots.shape[1]) < 0.2, -1, np.arange(slots.shape[1]) + 3 * sequence)
    again = np.full_like(slots, -1)
    for sequence, start, stop, page, offset in runs(slots, page_size):
        assert start < stop
        assert offset >= 0
        assert offset + stop - start <= page_size
        assert (again[sequence, start:stop] == -1).all()
        again[sequence, start:stop] = page * page_size + offset + np.arange(stop - start)
    assert (again == slots).all()


def test_runs_are_as_long_as_pages_allow() -> None:
    assert list(runs(np.arange(10)[None], 4)) == [(0, 0, 4, 0, 0), (0, 4, 8, 1, 0), (0, 8, 10, 2, 0)]
    assert list(runs(np.array([[6], [-1]]), 4)) == [(0, 0, 1, 1, 2)]


def test_pages_without_a_slot_have_no_runs() -> None:
    assert list(runs(np.full((2, 3), -1), 0)) == []


@pytest.fixture
def pages(kit):
    """Five pages of three slots in a backend that inherits everything."""
    return kit.Plain().allocate(5, 3, num_kv_heads=2, head_dim=4, value_dim=6, dtype="float32")


def test_fresh_pages(pages) -> None:
    assert (pages.key.shape, pages.value.shape) == ((5, 2, 3, 4), (5, 2, 3, 6))
    assert (pages.page_size, pages.dtype, pages.nbytes) == (3, "float32", 5 * 2 * 3 * 10 * 4)
    assert not pages.key.any()
    assert not pages.value.any()


def test_scales_count_as_memory(pages) -> None:
    scaled = ak.Pages(pages.key, pages.value, np.zeros(7, np.float16), np.zeros(5, np.float16))
    assert scaled.nbytes == pages.nbytes + 24


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_write_then_gather(kit, pages, draw, dtype) -> None:
    backend, key, value = kit.Plain(), draw(2, 2, 4, 4, dtype=dtype), draw(2, 2, 4, 6, dtype=dtype)
    slots = np.array([[2, 3, 4, -1], [12, -1, 14, 0]])
    backend.write(pages, slots, key, value)
    found = backend.gather(pages, slots)
    for array, expected in zip(found, (key, value), strict=True):
        assert array.dtype == np.float32
        shown = (slots >= 0)[:, None, :, None]
        assert (array == np.where(shown, expected.astype(np.float32), 0)).all()
    untouched = backend.gather(pages, np.array([[1, 5, 6, 13]]))
    assert not untouched[0].any()


def test_gathered_arrays_are_copies(kit, pages, draw) -> None:
    backend = kit.Plain()
    backend.write(pages, np.array([[0]]), draw(1, 2, 1, 4), draw(1, 2, 1, 6))
    key, _ = backend.gather(pages, np.array([[0]]))
    key[...] = np.nan
    assert np.isfinite(pages.key).all()


@pytest.mark.parametrize(
    ("index", "start", "lengths"),
    [
        ([[0], [1]], [0, 0], [3, 3]),
        ([[0], [1]], [0, 0], [3, 1]),
        ([[4], [2]], [0, 0], [2, 2]),
        ([[3, 0], [1, 4]], [0, 0], [5, 4]),
        ([[3, 0], [1, 4]], [1, 2], [5, 4]),
        ([[3, 0], [3, 1]], [0, 0], [5, 4]),  # a shared prefix
        ([[3], [1]], [0, 0], [0, 2]),
    ],
)
@pytest.mark.parametrize("backend", ["plain", "numpy"])
def test_attention_over_pages_where_they_lie(kit, draw, backend, index, start, lengths) -> None:
    holder = kit.Plain() if backend == "plain" else ak.get_backend(backend)
    pages = holder.allocate(5, 3, num_kv_heads=2, head_dim=4, value_dim=6, dtype="float64")
    pages.key[...], pages.value[...] = draw(*pages.key.shape), draw(*pages.value.shape)
    where, query = table(index, start), draw(2, 4, 2, 4)
    slots = where.slots(np.array(lengths), 3)
    key, value = holder.gather(pages, slots)
    options = {"mask": ak.Mask.causal(), "kv_lengths": lengths}
    expected = ak.attention_with_lse(query, key, value, **options, backend=holder)
    dead = np.ones(15, bool)
    dead[slots[slots >= 0]] = False
    page, offset = dead.reshape(5, 3).nonzero()
    pages.key[page, :, offset] = pages.value[page, :, offset] = np.nan

    request = ak.explain(query, key, value, **options, lse=True, backend=holder).request
    plan = holder.plan(request, holder.preference(request)[0])
    operands = ak.Operands(2, max(lengths), kv_lengths=np.array(lengths))
    output, lse = holder.attend_pages(query, pages, where, operands, plan)
    np.testing.assert_allclose(output, expected.output, atol=1e-12)
    np.testing.assert_allclose(lse, expected.lse, atol=1e-12)
