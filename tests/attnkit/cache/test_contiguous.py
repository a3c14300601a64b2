"""Contiguous storage: capacity, growth, memory told in advance, and failures that leave no trace (C1, C3, C10)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import attnkit as ak


class Faults:
    """A backend whose storage primitives count their calls and fail on demand."""

    def __init__(self, kit, base):
        self.calls, self.fail_at = {"allocate": 0, "write": 0, "gather": 0}, {}
        members = {name: self._counted(name, base) for name in self.calls}
        self.backend = kit.backend("faulty", **members)

    def _counted(self, name, base):
        def primitive(this, *arguments, **options):
            self.calls[name] += 1
            self.fail_at[name] = self.fail_at.get(name, 0) - 1
            if self.fail_at[name] == 0:
                if name == "write":  # half of it is written
                    plane, slots, tokens = arguments
                    base.write(this, plane, slots[:, : slots.shape[1] // 2 + 1], tokens)
                    base.write(this, plane, slots[:1], tokens + 1)
                raise MemoryError(f"{name} failed")
            return getattr(base, name)(this, *arguments, **options)

        return primitive


@pytest.fixture
def faults(kit, nobody):
    return Faults(kit, ak.Backend)


@pytest.fixture
def make(faults, shelf):
    def make(**changes):
        return ak.make_cache(shelf.config(**changes), backend=faults.backend)

    return make


# Capacity


def test_a_fixed_cache_has_room_from_the_start_and_no_more(shelf, backend, tokens) -> None:
    cache = ak.make_cache(shelf.config(max_length=4), backend=backend)
    assert cache.capacity.tolist() == cache[0].capacity.tolist() == [4, 4, 4]
    cache[0].append(*tokens(3), lengths=[3, 1, 2])
    cache[0].append(*tokens(1))
    assert cache[0].stored.tolist() == [4, 2, 3]
    before = shelf.observe(cache)
    with pytest.raises(ak.CacheCapacityError) as caught:
        cache[0].append(*tokens(1))
    for words in ("room for 5 tokens", "max_length = 4", "truncate or drop", "larger max_length", "None"):
        assert words in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert shelf.observe(cache) == before
    cache[0].append(*tokens(3), lengths=[0, 2, 1])  # padding takes no room
    assert cache[0].stored.tolist() == [4, 4, 4]


def test_one_sequence_too_long_stops_all(shelf, backend, tokens) -> None:
    cache = ak.make_cache(shelf.config(max_length=4, num_layers=1), backend=backend)
    cache[0].append(*tokens(3), lengths=[1, 3, 0])
    before = shelf.observe(cache)
    with pytest.raises(ak.CacheCapacityError, match="room for 5 tokens"):
        cache[0].append(*tokens(2))
    assert shelf.observe(cache) == before
    cache.drop([0, 3, 0])
    cache[0].append(*tokens(2))
    assert cache.stored.tolist() == [3, 2, 2]


def test_a_growing_cache_starts_with_nothing(shelf, backend) -> None:
    cache = ak.make_cache(shelf.config(), backend=backend)
    assert cache.nbytes == 0
    assert cache.capacity.tolist() == [0, 0, 0]


def test_growing_keeps_what_is_stored(shelf, backend, tokens) -> None:
    cache, lists = ak.make_cache(shelf.config(), backend=backend), shelf.Lists(shelf.config())
    for count, lengths in [(60, [60, 3, 0]), (5, None), (80, [1, 80, 7]), (200, None)]:
        for layer in range(2):
            key, value = tokens(count)
            cache[layer].append(key, value, lengths=lengths)
            lists.append(layer, key, value, lengths)
            for found, expected in zip(cache[layer].read(), lists.read(layer), strict=True):
                assert found.tobytes() == expected.tobytes()


def test_growing_leaves_dead_slots_behind(shelf, backend, tokens) -> None:
    cache = ak.make_cache(shelf.config(), backend=backend)
    cache[0].append(*tokens(60), lengths=[60, 3, 0])
    before = cache[0].read()
    shelf.poison(cache)
    cache[1].append(*tokens(65))
    assert cache.capacity.tolist() == [128] * 3
    assert all((a == b).all() for a, b in zip(cache[0].read(), before, strict=True))
    assert np.isfinite(cache[0].attend(np.ones((3, 4, 2, 4)))).all()


def test_the_first_layer_reserves_for_all(make, faults, tokens) -> None:
    cache = make()
    cache[0].append(*tokens(3))
    assert [pages.page_size for pages in cache.pages] == [64, 64]
    before = dict(faults.calls)
    cache[1].append(*tokens(3))
    assert faults.calls["allocate"] == before["allocate"]


def test_growing_is_seldom(make, faults, tokens) -> None:
    cache = make(num_layers=2)
    faults.calls.update(allocate=0, write=0)
    copied, length = 0, 700
    key, value = tokens(1)
    for _ in range(length):
        before = cache[0].capacity[0]
        for layer in cache:
            layer.append(key, value)
        copied += int(cache.stored[0]) if cache[0].capacity[0] != before else 0
    growths = len({cache.config.capacity_for(n) for n in range(1, length + 1)})
    assert growths <= 11
    planes = 2 * 2  # of two layers, keys and values
    assert faults.calls["allocate"] <= 2 * planes * growths  # new planes, and a copy of what each holds
    assert faults.calls["write"] == planes * (length + growths)
    assert copied <= 5 * length


# Memory


@pytest.mark.parametrize("max_length", [None, 1, 77, 300])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_memory_is_what_was_told(shelf, backend, max_length, dtype, tokens) -> None:
    config = shelf.config(max_length=max_length, dtype=dtype, batch_size=3)
    cache = ak.make_cache(config, backend=backend)
    assert cache.nbytes == config.bytes_for(0)
    steps = [*range(0, max_length or 300, 19), max_length or 300]
    for start, length in pairwise(steps):
        for layer in cache:
            layer.append(*tokens(length - start))
        assert cache.nbytes == config.bytes_for(length)
        assert cache.capacity.tolist() == [config.capacity_for(length)] * 3
        assert cache.nbytes == config.bytes_per_token * 3 * int(cache.capacity[0])


@pytest.mark.parametrize("length", [1, 63, 64, 65, 256, 257, 320, 321, 511, 1000])
def test_memory_of_one_long_append(shelf, backend, length, tokens) -> None:
    config = shelf.config()
    cache = ak.make_cache(config, backend=backend)
    cache[0].append(*tokens(length), lengths=[0, length, 1])
    assert cache.nbytes == config.bytes_for(length)
    cache.truncate(0)
    assert cache.nbytes == config.bytes_for(length)  # it goes on holding what it has held
    cache.reset()
    assert cache.nbytes == config.bytes_for(0) == 0


# Failures leave no trace


@pytest.mark.parametrize("max_length", [None, 100])
@pytest.mark.parametrize("first", [3, 63])
@pytest.mark.parametrize("lengths", [None, [4, 0, 2]])
def test_a_write_that_fails_half_way(make, faults, shelf, tokens, max_length, first, lengths) -> None:
    cache = make(max_length=max_length)
    for layer in cache:
        layer.append(*tokens(first), lengths=[first, first - 1, 1])
    before = shelf.observe(cache, rows=4), shelf.observe(cache, rows=first)
    growing = max_length is None and first + 4 > 64
    for number in range(1, 7 if growing else 3):  # growing writes the copies of each layer first
        faults.fail_at["write"] = number
        with pytest.raises(MemoryError, match="write failed"):
            cache[1].append(*tokens(4), lengths=lengths)
        assert (shelf.observe(cache, rows=4), shelf.observe(cache, rows=first)) == before
    key, value = tokens(4)
    cache[1].append(key, value, lengths=lengths)
    taken = 4 if lengths is None else lengths[0]
    assert (cache[1].read()[0][0, :, first : first + taken] == key[0, :, :taken]).all()


@pytest.mark.parametrize("primitive", ["allocate", "gather"])
def test_growth_that_fails(make, faults, shelf, tokens, primitive) -> None:
    cache = make()
    for layer in cache:
        layer.append(*tokens(60), lengths=[60, 0, 7])
    before = shelf.observe(cache)
    for number in (1, 2):
        faults.fail_at[primitive] = number
        with pytest.raises(MemoryError, match=f"{primitive} failed"):
            cache[0].append(*tokens(5))
        assert shelf.observe(cache) == before
    cache[0].append(*tokens(5))
    assert cache[0].stored.tolist() == [65, 5, 12]
    assert cache[1].stored.tolist() == [60, 0, 7]


@pytest.mark.parametrize("primitive", ["allocate", "gather", "write"])
def test_a_reorder_that_fails(make, faults, shelf, tokens, primitive) -> None:
    cache = make()
    for layer in cache:
        layer.append(*tokens(5), lengths=[5, 0, 3])
    before = shelf.observe(cache, rows=5)
    for number in (1, 2):
        faults.fail_at[primitive] = number
        with pytest.raises(MemoryError, match=f"{primitive} failed"):
            cache.reorder([2, 0, 0])
        assert shelf.observe(cache, rows=5) == before
    cache.reorder([2, 0, 0])
    assert cache.stored.tolist() == [3, 5, 5]


@pytest.mark.parametrize("max_length", [None, 100])
def test_a_reset_that_fails(make, faults, shelf, tokens, max_length) -> None:
    cache = make(max_length=max_length)
    for layer in cache:
        layer.append(*tokens(5), lengths=[5, 0, 3])
    before = shelf.observe(cache, rows=5)
    faults.fail_at["allocate"] = 2
    with pytest.raises(MemoryError, match="allocate failed"):
        cache.reset()
    assert shelf.observe(cache, rows=5) == before


def test_a_cache_that_cannot_be_allocated(faults, shelf) -> None:
    faults.fail_at["allocate"] = 1
    with pytest.raises(MemoryError):
        ak.make_cache(shelf.config(max_length=100), backend=faults.backend)


def test_two_caches_share_nothing(shelf, backend, tokens) -> None:
    left, right = (ak.make_cache(shelf.config(max_length=9), backend=backend) for _ in range(2))
    left[0].append(*tokens(3))
    before = shelf.observe(left)
    right[0].append(*tokens(9))
    right.reorder([1, 1, 1])
    assert shelf.observe(left) == before
