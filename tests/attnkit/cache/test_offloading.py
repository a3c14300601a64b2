"""Idle sequences go to the host or to a file, and come back bit for bit; all or nothing (C3, C8, C11)."""

from __future__ import annotations

import errno
import threading
from itertools import count

import numpy as np
import pytest

import attnkit as ak
from attnkit.cache import atomic
from attnkit_numpy.backend import NumpyBackend

SIZES = {"num_layers": 2, "batch_size": 3, "num_kv_heads": 2, "head_dim": 4, "value_dim": 3, "dtype": "float32"}
LAYOUTS = {
    "growing": {"layout": "contiguous"},
    "fixed": {"layout": "contiguous", "max_length": 40},
    "ring": {"layout": "ring", "window": 4, "max_append": 5, "pinned": 1},
    "paged": {"layout": "paged", "page_size": 4},
    "pool": {"layout": "paged", "page_size": 3, "num_pages": 60},
}
CODECS = ("native", "int8", "int4", "fp8")
PLACES = ("memory", "file")


def make(backend="numpy", **changes):
    if backend == "torch":
        pytest.importorskip("torch", reason="the core is also tested without torch, which is an extra")
    return ak.make_cache(ak.KVCacheConfig(**{**SIZES, **changes}), backend=backend)


def append(cache, tokens, lengths=None, layers=None):
    draw = np.random.default_rng(int(cache.counters.next.sum()) * 7 + cache.batch_size)
    for layer in cache if layers is None else [cache[number] for number in layers]:
        shape = (cache.batch_size, cache.config.num_kv_heads, tokens)
        arrays = [draw.standard_normal((*shape, size)) * 3 for size in (cache.config.head_dim, cache.config.value_dim)]
        layer.append(*map(cache.backend.from_numpy, arrays), lengths=lengths)
    return cache


def reads(cache, sequence):
    """Give all that a cache holds of a sequence, as bytes, and its counters."""
    held = [
        cache.backend.to_numpy(array)[sequence, :, :n].tobytes()
        for layer in cache
        for n in [int(layer.stored[sequence])]
        for array in layer.read()
    ]
    return held, cache.counters.next[:, sequence].tolist(), cache.counters.gone[:, sequence].tolist()


def everything(cache):
    return [reads(cache, sequence) for sequence in range(cache.batch_size)], cache.counters.ragged


def filled(backend="numpy", **changes):
    cache = make(backend, **changes)
    for _ in range(3):
        append(cache, 5, lengths=[5, 3, 1])
    return append(append(cache, 2), 1, layers=[0])


def home(place, tmp_path):
    return None if place == "memory" else tmp_path / "sequence"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("place", PLACES)
def test_out_and_back_bit_for_bit(tmp_path, layout, codec, place) -> None:
    cache = filled(codec=codec, **LAYOUTS[layout])
    before = [reads(cache, sequence) for sequence in range(3)]
    offloaded = cache.offload(1, home(place, tmp_path))
    cache.check_invariants()
    assert [reads(cache, sequence) for sequence in range(2)] == [before[0], before[2]]
    assert offloaded.length == min(before[1][1])
    assert offloaded.path == home(place, tmp_path)
    assert 0 < offloaded.nbytes < cache.nbytes
    assert cache.resume(offloaded) == 2
    cache.check_invariants()
    assert [reads(cache, sequence) for sequence in range(3)] == [before[0], before[2], before[1]]
    cache.truncate(cache.next_position)
    append(cache, 3)
    cache.check_invariants()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("first", "second"), [("numpy", "torch"), ("torch", "numpy")])
def test_into_a_cache_of_another_backend(tmp_path, layout, place, first, second) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        cache = filled(first, dtype=dtype, **LAYOUTS[layout])
        other = append(make(second, dtype=dtype, batch_size=1, **LAYOUTS[layout]), 2)
        before, own = reads(cache, 2), reads(other, 0)
        assert other.resume(cache.offload(2, home(place, tmp_path))) == 1
        assert (reads(other, 0), reads(other, 1)) == (own, before)


def test_into_a_cache_of_another_layout_and_codec() -> None:
    cache = filled(codec="int8")
    expected = [layer.read()[0][1, :, : layer.stored[1]] for layer in cache]
    offloaded = cache.offload(1)
    other = make(dtype="float64", layout="paged", page_size=2, batch_size=0)
    assert other.resume(offloaded) == 0
    for layer, key in zip(other, expected, strict=True):
        np.testing.assert_array_equal(layer.read()[0][0], key.astype(np.float64))


def test_a_value_may_be_resumed_twice(tmp_path) -> None:
    for place in PLACES:
        cache = filled(**LAYOUTS["paged"])
        before = reads(cache, 0)
        offloaded = cache.offload(0, home(place, tmp_path))
        assert (cache.resume(offloaded), cache.resume(offloaded)) == (2, 3)
        append(cache, 1, lengths=[0, 0, 0, 1])
        assert reads(cache, 2) == before
        assert offloaded == offloaded  # a value
        cache.check_invariants()


def test_the_pages_of_an_idle_sequence_are_free_for_others() -> None:
    cache = append(make(batch_size=2, layout="paged", page_size=4, num_pages=6), 12)
    assert cache.pool.free == 0
    offloaded = cache.offload(0)
    assert cache.pool.free == 3
    append(cache, 8)
    with pytest.raises(ak.CacheCapacityError, match="3 more pages of 4 tokens are needed, 1 of the pool's 6 are free"):
        cache.resume(offloaded)
    cache.check_invariants()
    cache.truncate(12)
    assert cache.resume(offloaded) == 1


def test_an_offloaded_fork_leaves_the_pages_to_the_other() -> None:
    cache = append(make(batch_size=1, layout="paged", page_size=4), 9)
    cache.fork(0)
    before = reads(cache, 0)
    offloaded = cache.offload(0)
    assert (cache.pool.used, reads(cache, 0)) == (3, before)
    cache.resume(offloaded)
    assert (cache.pool.used, reads(cache, 1)) == (6, before)


def test_the_ragged_lengths_of_the_last_append() -> None:
    """A resumed sequence keeps its own where the last append was one to it, else it took nothing."""
    cache = append(make(), 4, lengths=[4, 2, 3])
    cache.resume(cache.offload(0))
    assert [(item.tokens, item.taken.tolist()) for item in cache.counters.ragged] == [(4, [2, 3, 4])] * 2
    offloaded = cache.offload(0)
    append(cache, 3, lengths=[1, 3])
    cache.resume(offloaded)
    assert [(item.tokens, item.taken.tolist()) for item in cache.counters.ragged] == [(3, [1, 3, 0])] * 2
    append(cache, 2)
    cache.resume(offloaded)
    assert cache.counters.ragged == (None, None)
    empty = make(batch_size=0)
    empty.resume(offloaded)
    assert [(item.tokens, item.taken.tolist()) for item in empty.counters.ragged] == [(4, [2])] * 2


def test_the_file_of_a_sequence_is_a_cache(tmp_path) -> None:
    cache = filled(codec="int4")
    before = reads(cache, 2)
    cache.offload(2, tmp_path / "sequence")
    assert reads(ak.load_cache(tmp_path / "sequence"), 0) == before


def test_bytes_are_those_of_what_is_held() -> None:
    for codec in CODECS:
        cache = append(make(codec=codec, max_length=100), 7)
        assert cache.offload(0).nbytes == 7 * cache.config.bytes_per_token


def test_an_empty_sequence() -> None:
    for layout in LAYOUTS.values():
        cache = make(**layout)
        offloaded = cache.offload(1)
        assert (offloaded.nbytes, offloaded.length) == (0, 0)
        cache.select([])
        assert cache.resume(offloaded) == 0
        append(cache, 2)
        cache.check_invariants()


# Refusals and faults


def test_what_is_no_sequence() -> None:
    cache = filled()
    before = everything(cache)
    for wrong in (3, -1):
        with pytest.raises(ak.ShapeError, match=r"sequence must lie in 0\.\.B - 1 with B = 3"):
            cache.offload(wrong)
    with pytest.raises(ak.DTypeError, match="sequence must be an integer"):
        cache.offload(True)
    for wrong in (None, "path", cache, cache.snapshot()):
        with pytest.raises(ak.DTypeError, match=r"offloaded must come from offload\(\)"):
            cache.resume(wrong)
    assert everything(cache) == before


def test_a_cache_of_another_shape() -> None:
    offloaded = filled().offload(0)
    for name in ("num_layers", "num_kv_heads", "head_dim", "value_dim"):
        cache = append(make(**{name: 5}), 2)
        before = everything(cache)
        with pytest.raises(ak.ShapeError, match=f"{name} 5 and not"):
            cache.resume(offloaded)
        assert everything(cache) == before
    with pytest.raises(ak.CacheCapacityError, match="max_length = 4"):
        make(max_length=4).resume(offloaded)


def test_a_file_that_is_gone_torn_or_another(tmp_path) -> None:
    cache, path = filled(), tmp_path / "sequence"
    offloaded = cache.offload(0, path)
    before, written = everything(cache), path.read_bytes()
    path.write_bytes(written[:-1])
    with pytest.raises(ak.CacheFileError, match="sha256"):
        cache.resume(offloaded)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        cache.resume(offloaded)
    cache.save(path)
    with pytest.raises(ak.CacheFileError, match="written over since the sequence was offloaded"):
        cache.resume(offloaded)
    assert everything(cache) == before
    path.write_bytes(written)
    assert cache.resume(offloaded) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_write_that_fails_leaves_the_sequence_where_it_is(tmp_path, monkeypatch, layout) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = filled(**LAYOUTS[layout])
    before = everything(cache)
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, name, full)
            with pytest.raises(OSError, match="No space left"):
                cache.offload(1, tmp_path / "sequence")
        assert everything(cache) == before
        cache.check_invariants()
    assert not list(tmp_path.iterdir())


class Faulty(NumpyBackend):
    """Its storage primitives fail at one call."""

    def __init__(self) -> None:
        self.left = 0

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise MemoryError

    def allocate(self, shape, dtype):
        self.step()
        return super().allocate(shape, dtype)

    def write(self, plane, slots, tokens):
        self.step()
        super().write(plane, slots, tokens)

    def gather(self, plane, slots):
        self.step()
        return super().gather(plane, slots)

    def from_numpy(self, array):
        self.step()
        return super().from_numpy(array)

    def to_numpy(self, array):
        self.step()
        return super().to_numpy(array)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["native", "int8"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_at_any_point_leaves_the_cache_as_it_was(tmp_path, layout, codec, place) -> None:
    backend = Faulty()
    cache = filled(backend, codec=codec, **LAYOUTS[layout])
    cache.fork(0)
    offloaded = cache.offload(0, home(place, tmp_path))
    before = everything(cache)
    for operation in (
        lambda: cache.resume(offloaded),
        lambda: cache.offload(1, home(place, tmp_path)),
        lambda: cache.save(tmp_path / "all"),
    ):
        for point in count(1):
            backend.left = point
            try:
                operation()
            except MemoryError:
                backend.left = 0
                cache.check_invariants()
                assert everything(cache) == before
                assert not list(tmp_path.glob(".*"))
            else:
                break
        backend.left = 0
        assert point > 4
        cache.check_invariants()
        before = everything(cache)


def test_a_load_that_fails_gives_back_what_it_took(tmp_path) -> None:
    backend = Faulty()
    config = ak.KVCacheConfig(**SIZES, layout="paged", page_size=4, num_pages=12)
    pool = ak.PagePool(config, backend=backend)
    first = append(ak.make_cache(config, backend=backend, pool=pool), 5)
    first.save(tmp_path / "cache")
    before = pool.used
    for point in count(1):
        backend.left = point
        try:
            cache = ak.load_cache(tmp_path / "cache", backend=backend, pool=pool)
        except MemoryError:
            backend.left = 0
            pool.check()
            assert pool.used == before
        else:
            break
    assert point > 4
    assert pool.used == before + 6 == cache.pool.used


def test_threads_may_offload_and_resume(tmp_path) -> None:
    """Two caches of one pool; each thread sends sequences away and back."""
    config = ak.KVCacheConfig(**{**SIZES, "batch_size": 2}, layout="paged", page_size=2, num_pages=60)
    pool = ak.PagePool(config, backend="numpy")
    caches = [append(ak.make_cache(config, backend="numpy", pool=pool), 5 + number) for number in range(2)]
    before, faults = [sorted(everything(cache)[0]) for cache in caches], []

    def work(number):
        try:
            for turn in range(40):
                cache = caches[number % 2]
                cache.resume(cache.offload(0, None if turn % 4 else tmp_path / f"of-{number}"))
        except BaseException as error:  # told by the thread that started this one
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert [sorted(everything(cache)[0]) for cache in caches] == before
    pool.check()
