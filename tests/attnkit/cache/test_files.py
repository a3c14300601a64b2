"""Saved caches: round trips bit for bit, as they are or as another kind of cache, and the format (C11)."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnkit as ak
from attnkit.cache.files import open_image

SIZES = {"num_layers": 2, "batch_size": 3, "num_kv_heads": 2, "head_dim": 4, "value_dim": 3}
LAYOUTS = {
    "growing": {"layout": "contiguous"},
    "fixed": {"layout": "contiguous", "max_length": 40},
    "ring": {"layout": "ring", "window": 4, "max_append": 5},
    "pinned": {"layout": "ring", "window": 4, "max_append": 5, "pinned": 3},
    "paged": {"layout": "paged", "page_size": 4},
    "pool": {"layout": "paged", "page_size": 3, "num_pages": 60},
}
DTYPES = ("float16", "bfloat16", "float32", "float64")
CODECS = ("native", "int8", "int4", "fp8")
BACKENDS = ("numpy", "torch")
START = 8 + len('{"__metadata__":{"sha256":"')


def make(backend="numpy", **changes):
    if backend == "torch":
        pytest.importorskip("torch", reason="the core is also tested without torch, which is an extra")
    return ak.make_cache(ak.KVCacheConfig(**{**SIZES, **changes}), backend=backend)


def bits(backend, array):
    return backend.to_numpy(array).tobytes()


def reads(cache):
    """Give all that a cache holds and counts, as bytes and lists."""
    held = [bits(cache.backend, array) for layer in cache for array in layer.read()]
    ragged = [item and (item.tokens, item.taken.tolist()) for item in cache.counters.ragged]
    return held, cache.counters.next.tolist(), cache.counters.gone.tolist(), ragged


def append(cache, count, lengths=None, layers=None):
    draw = np.random.default_rng(int(cache.counters.next.sum()) * 7 + cache.batch_size)
    for layer in cache if layers is None else [cache[number] for number in layers]:
        shape = (cache.batch_size, cache.config.num_kv_heads, count)
        arrays = [draw.standard_normal((*shape, size)) * 3 for size in (cache.config.head_dim, cache.config.value_dim)]
        layer.append(*map(cache.backend.from_numpy, arrays), lengths=lengths)
    return cache


def lived(cache):
    """Give a cache that has been through much: evictions, forks, an empty sequence, a failed forward pass."""
    for _ in range(3):
        append(cache, 5, lengths=[5, 3, 1])
    cache.fork(0)
    cache.fork(2)
    append(cache, 2)
    cache.admit()
    append(cache, 3, lengths=[1, 0, 3, 2, 0, 0], layers=[0])
    return cache


def saved(cache, path):
    cache.save(path)
    return path.read_bytes()


# Round trips


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("first", "second"), [("numpy", "torch"), ("torch", "numpy"), ("numpy", "numpy")])
def test_a_cache_comes_back_bit_for_bit_on_any_backend(tmp_path, layout, codec, first, second) -> None:
    for dtype in DTYPES:
        cache = lived(make(first, dtype=dtype, codec=codec, **LAYOUTS[layout]))
        if second == "torch":
            make("torch")
        written = saved(cache, tmp_path / "cache")
        again = ak.load_cache(tmp_path / "cache", backend=second)
        again.check_invariants()
        assert again.config == cache.config
        assert again.backend.name == second
        assert reads(again) == reads(cache)
        assert saved(again, tmp_path / "again") == written


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_loaded_goes_on_as_what_was_saved(tmp_path, layout) -> None:
    cache = lived(make(dtype="float64", **LAYOUTS[layout]))
    cache.save(tmp_path / "cache")
    again = ak.load_cache(tmp_path / "cache")
    query = np.linspace(-1, 1, 6 * 4 * 3 * 4).reshape(6, 4, 3, 4)
    for step in (
        lambda c: c.truncate(c.next_position),
        lambda c: append(c, 4),
        lambda c: c.release(1),
        lambda c: c.fork(0),
    ):
        for layer, other in zip(cache, again, strict=True):
            assert (layer.attend(query[: cache.batch_size]) == other.attend(query[: cache.batch_size])).all()
        step(cache)
        step(again)
        again.check_invariants()
        assert reads(again) == reads(cache)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [0, 3])
def test_nothing_comes_back_too(tmp_path, layout, batch) -> None:
    cache = make(batch_size=batch, **LAYOUTS[layout])
    cache.save(tmp_path / "cache")
    again = ak.load_cache(tmp_path / "cache")
    assert (again.batch_size, again.config) == (batch, cache.config)
    assert reads(again) == reads(cache)
    again.admit()
    append(again, 2)
    again.check_invariants()


def test_a_batch_that_has_emptied_after_a_ragged_append_comes_back(tmp_path) -> None:
    cache = append(make(batch_size=1), 3, lengths=[2])
    cache.release(0)
    cache.save(tmp_path / "cache")
    assert reads(ak.load_cache(tmp_path / "cache")) == reads(cache)
    append(cache, 3, lengths=[])
    cache.save(tmp_path / "cache")
    assert reads(ak.load_cache(tmp_path / "cache")) == reads(cache)


def test_more_and_fewer_sequences_than_it_was_made_for(tmp_path) -> None:
    for layout, rows in product(LAYOUTS.values(), ([0, 1, 2] * 3, [1], [])):
        cache = append(make(**layout), 4)
        cache.select(np.array(rows, np.int64))
        cache.save(tmp_path / "cache")
        again = ak.load_cache(tmp_path / "cache")
        assert reads(again) == reads(cache)
        again.check_invariants()


@settings(max_examples=60, deadline=None, database=None)
@given(data=st.data())
def test_random_lives_come_back(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("lives") / "cache"
    choice = {**LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))], "codec": data.draw(st.sampled_from(CODECS))}
    cache = make(**choice)
    for _ in range(data.draw(st.integers(0, 12))):
        kind = data.draw(st.sampled_from(["append", "append", "append", "fork", "release", "drop", "load"]))
        held = int(cache.next_position.min(initial=40))
        if kind == "append" and held < 35:
            most = st.integers(0, 3)
            append(cache, 3, lengths=data.draw(st.lists(most, min_size=cache.batch_size, max_size=cache.batch_size)))
        elif kind == "fork" and 0 < cache.batch_size < 7:
            cache.fork(data.draw(st.integers(0, cache.batch_size - 1)))
        elif kind == "release" and cache.batch_size:
            cache.release(data.draw(st.integers(0, cache.batch_size - 1)))
        elif kind == "drop" and held and "window" not in choice:
            cache.drop(data.draw(st.integers(0, held)))
        elif kind == "load":
            before, pages = reads(cache), getattr(cache, "pool", None) and cache.pool.used
            cache.save(path)
            cache = ak.load_cache(path)
            assert reads(cache) == before
            assert (getattr(cache, "pool", None) and cache.pool.used) == pages
        cache.check_invariants()


def test_odd_bits_survive(tmp_path) -> None:
    """Negative zero, infinity, subnormals, and NaN of any payload."""
    for dtype, backend in product(DTYPES, BACKENDS):
        cache = make(num_layers=1, batch_size=1, num_kv_heads=1, head_dim=16, value_dim=16, dtype=dtype)
        width = {"float64": 8, "float32": 4}.get(dtype, 2)
        pattern = np.random.default_rng(5).integers(0, 256, (1, 8, 16 * width), np.uint8)
        pattern[0, 0] = 0xFF
        append(cache, 8)
        for plane in cache.pages[0].planes:
            plane[:, :8] = pattern.view(plane.dtype)
        make(backend)
        cache.save(tmp_path / "odd")
        again = ak.load_cache(tmp_path / "odd", backend=backend)
        assert bits(again.backend, again[0].read()[0]) == pattern.tobytes()
        assert saved(again, tmp_path / "again") == (tmp_path / "odd").read_bytes()


def test_a_pool_that_held_forks_holds_them_again(tmp_path) -> None:
    cache = append(make(batch_size=1, layout="paged", page_size=4, num_pages=20), 17)
    for _ in range(7):
        cache.fork(0)
    append(cache, 1)
    assert (cache.pool.used, len(cache.rows[0])) == (12, 5)
    cache.save(tmp_path / "cache")
    again = ak.load_cache(tmp_path / "cache")
    assert again.pool.used == 12
    append(again, 2)
    append(cache, 2)
    assert reads(again) == reads(cache)


def test_into_a_pool_that_others_use(tmp_path) -> None:
    config = ak.KVCacheConfig(**SIZES, layout="paged", page_size=4, num_pages=12)
    pool = ak.PagePool(config, backend="numpy")
    cache = append(ak.make_cache(config, backend="numpy", pool=pool), 9)
    cache.save(tmp_path / "cache")
    with pytest.raises(ak.CacheCapacityError, match="9 more pages of 4 tokens are needed, 3 of the pool's 12 are free"):
        ak.load_cache(tmp_path / "cache", pool=pool)
    cache.release(0)
    cache.release(0)
    again = ak.load_cache(tmp_path / "cache", pool=pool, config=config)
    assert pool.used == 12
    assert again.pool is pool
    again.check_invariants()
    assert reads(again)[0] == reads(ak.load_cache(tmp_path / "cache"))[0]


def test_as_another_layout_codec_dtype_and_capacity(tmp_path) -> None:
    cache = append(make(batch_size=2, codec="int8", layout="paged", page_size=4), 6, lengths=[6, 4])
    cache.save(tmp_path / "cache")
    other = ak.KVCacheConfig(**{**SIZES, "batch_size": 5}, dtype="float64", layout="contiguous", max_length=9)
    again = ak.load_cache(tmp_path / "cache", config=other)
    assert (again.config, again.batch_size, again.capacity.tolist()) == (other, 2, [9, 9])
    for layer, decoded in zip(again, cache, strict=True):
        for found, expected in zip(layer.read(), decoded.read(), strict=True):
            np.testing.assert_array_equal(found, expected.astype(np.float64))
    assert again.next_position.tolist() == [6, 4]
    ring = ak.load_cache(tmp_path / "cache", config=ak.KVCacheConfig(**SIZES, layout="ring", window=3, max_append=1))
    assert (ring.stored.tolist(), ring.next_position.tolist()) == ([3, 3], [6, 4])
    np.testing.assert_array_equal(ring[0].read()[0][1], cache[0].read()[0][1, :, 1:4])
    with pytest.raises(ak.CacheCapacityError, match="max_length = 5"):
        ak.load_cache(tmp_path / "cache", config=ak.KVCacheConfig(**SIZES, max_length=5))


# The format


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", ["native", "int4"])
def test_the_library_reads_the_same(tmp_path, dtype, codec) -> None:
    safetensors = pytest.importorskip("safetensors", reason="of the extra models; the core writes the format itself")
    lived(make(dtype=dtype, codec=codec)).save(tmp_path / "cache")
    found = {
        name: (entry["dtype"], entry["shape"], bytes(entry["data"]))
        for name, entry in safetensors.deserialize((tmp_path / "cache").read_bytes())
    }
    names = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "uint8": "U8"}
    with open_image(tmp_path / "cache") as (image, _):
        expected = {
            plane.name: (names[plane.dtype], list(plane.shape), array.tobytes())
            for number, arrays in enumerate(image)
            for plane, array in zip(image.outline.planes(number), arrays, strict=True)
        }
    assert found == expected
    assert len(found) == (4 if codec == "native" else 8)


def test_the_hash_is_that_of_the_file_with_its_digits_as_zeros(tmp_path) -> None:
    data = saved(lived(make()), tmp_path / "cache")
    digits = data[START : START + 64]
    assert hashlib.sha256(data[:START] + b"0" * 64 + data[START + 64 :]).hexdigest().encode() == digits
    assert json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["sha256"] == digits.decode()


def test_a_file_is_little_more_than_what_is_held(tmp_path) -> None:
    cache = append(make(num_layers=4, batch_size=1, head_dim=64, value_dim=64, max_length=4096), 100)
    size = len(saved(cache, tmp_path / "cache"))
    held = 4 * 2 * 100 * 128 * 4
    assert held < size < held + 4096
    assert cache.nbytes > 30 * size


def test_saving_and_loading_hold_one_layer_at_a_time(tmp_path) -> None:
    """Beside the cache itself, memory for two planes is enough (one is gathered, then copied to the host)."""
    cache = append(make(num_layers=16, batch_size=1, head_dim=64, value_dim=64, max_length=2000), 2000)
    layer = cache.nbytes // 16
    cache.save(tmp_path / "cache")
    tracemalloc.start()
    try:
        cache.save(tmp_path / "cache")
        assert tracemalloc.get_traced_memory()[1] < 3 * layer
        tracemalloc.reset_peak()
        again = ak.load_cache(tmp_path / "cache")
        assert tracemalloc.get_traced_memory()[1] < again.nbytes + 4 * layer
    finally:
        tracemalloc.stop()
