"""Wrong use of a KV cache: appends, attends, and forgetting."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak

SHAPE, TYPE, FULL, REFUSED = ak.ShapeError, ak.DTypeError, ak.CacheCapacityError, ak.UnsupportedError
TOKENS = "key, value must be [B, K, T, D], [B, K, T, E] with B = 2, K = 2, D = 8, E = 6"
DTYPES = "float16, bfloat16, float32, float64"
HEADS = "query heads H must be a multiple"


def append(key=lambda key: key, value=lambda value: value, **options):
    """Append one token, with something done to its arrays."""
    return lambda w: w.cache[0].append(key(w.token[0]), value(w.token[1]), **options)


def foreign(**options):
    return lambda w: w.cache[0].append(w.foreign(2, 2, 1, 8, **options), w.foreign(2, 2, 1, 6, **options))


def several(count):
    return lambda array: array.repeat(count, axis=2)


APPEND = [
    ("batch", append(lambda k: k[:1], lambda v: v[:1]), SHAPE, TOKENS, "[1, 2, 1, 8], [1, 2, 1, 6]"),
    ("heads", append(lambda k: k[:, :1], lambda v: v[:, :1]), SHAPE, TOKENS, "[2, 1, 1, 8], [2, 1, 1, 6]"),
    ("lengths differ", append(value=several(2)), SHAPE, TOKENS, "[2, 2, 1, 8], [2, 2, 2, 6]"),
    ("head size", append(lambda k: k[..., 1:]), SHAPE, TOKENS, "[2, 2, 1, 7]"),
    ("value size", append(value=lambda v: v[..., 1:]), SHAPE, TOKENS, "[2, 2, 1, 5]"),
    ("three axes", append(lambda k: k[0], lambda v: v[0]), SHAPE, TOKENS, "[2, 1, 8], [2, 1, 6]"),
    ("key integers", append(lambda k: k.astype(int)), TYPE, "key must be one of", DTYPES, "got int64"),
    ("value complex", append(value=lambda v: v + 0j), TYPE, "value must be one of", DTYPES, "got complex64"),
    ("value float8", append(value=lambda v: v.astype(ml_dtypes.float8_e4m3fn)), TYPE, "value", "got float8_e4m3fn"),
    ("key list", append(lambda k: k.tolist()), TYPE, "key must be an array, got list"),
    ("key masked", append(np.ma.array), TYPE, "key must be a plain array, got a masked array"),
    ("another library", foreign(), TYPE, "key must come from the cache's array library, numpy", "Foreign"),
    ("over capacity", append(several(4), several(4)), FULL, "room for 9 tokens", "max_length = 8", "truncate or drop"),
    ("one over", append(several(4), several(4), lengths=[4, 0]), FULL, "room for 9 tokens", "max_length = 8"),
    ("lengths -1", append(lengths=[-1, 1]), SHAPE, "lengths must lie in 0..T = 0..1, got [-1, 1]"),
    ("lengths too long", append(lengths=[1, 2]), SHAPE, "lengths must lie in 0..T = 0..1, got [1, 2]"),
    ("lengths floats", append(lengths=[1.0, 0.0]), TYPE, "lengths must be an integer or integers [B], got float64"),
    ("lengths too few", append(lengths=[1]), SHAPE, "lengths must be an integer or [B] = [2], got shape [1]"),
    ("lengths ragged", append(lengths=[[1], [1, 2]]), TYPE, "lengths must be integers", "list"),
    ("lengths flag", append(lengths=True), TYPE, "lengths must be an integer or integers [B], got bool"),
]  # fmt: skip

ATTEND = [
    ("batch", lambda w: w.query[:1], {}, SHAPE, "query must be [B, H, T, D] with B = 2, got [1, 4, 3, 8]"),
    ("three axes", lambda w: w.query[0], {}, SHAPE, "query must be [B, H, T, D] with B = 2, got [4, 3, 8]"),
    ("head size", lambda w: w.query[..., 1:], {}, SHAPE, "[B, H, T, D]", "common B, K, S and D, got [2, 4, 3, 7]"),
    ("heads", lambda w: w.query[:, 1:], {}, SHAPE, HEADS, "H = 3, K = 2"),
    ("integers", lambda w: w.query.astype(int), {}, TYPE, "query", DTYPES, "int64"),
    ("list", lambda w: w.query.tolist(), {}, TYPE, "query must be an array, got list"),
    ("masked", lambda w: np.ma.array(w.query), {}, TYPE, "query must be a plain array, got a masked array"),
    ("library", lambda w: w.foreign(2, 4, 3, 8), {}, REFUSED, "query must be an array of numpy, got", "Foreign"),
    ("mask", lambda w: w.query, {"mask": "causal"}, TYPE, "mask must be a Mask or None, got str"),
    ("bias", lambda w: w.query, {"bias": np.ones((3, 4))}, SHAPE, "bias", "[B, H, T, S] = [2, 4, 3, 5], got [3, 4]"),
    ("query_lengths", lambda w: w.query, {"query_lengths": 4}, SHAPE, "query_lengths must lie in 0..T", "[4, 4]"),
    ("query_offset", lambda w: w.query, {"query_offset": 0.5}, TYPE, "query_offset must be an integer", "got float"),
    ("softcap", lambda w: w.query, {"softcap": -2}, SHAPE, "softcap must be > 0", "got -2.0"),
    ("kv_lengths", lambda w: w.query, {"kv_lengths": 3}, TypeError, "unexpected keyword argument 'kv_lengths'"),
]  # fmt: skip

FORGET = [
    ("truncate too long", lambda w: w.cache.truncate(6), SHAPE, "must lie in 0..next_position", "[5, 5], got [6, 6]"),
    ("truncate -1", lambda w: w.cache.truncate(-1), SHAPE, "must lie in 0..next_position", "[5, 5], got [-1, -1]"),
    ("truncate one too long", lambda w: w.cache.truncate([2, 6]), SHAPE, "must lie in 0..next_position", "got [2, 6]"),
    ("truncate float", lambda w: w.cache.truncate(2.0), TYPE, "length must be an integer or integers [B], got float"),
    ("truncate flag", lambda w: w.cache.truncate(True), TYPE, "length must be an integer or integers [B], got bool"),
    ("truncate None", lambda w: w.cache.truncate(None), TYPE, "length must be an integer", "got NoneType"),
    ("truncate too many", lambda w: w.cache.truncate([1] * 3), SHAPE, "length must be", "[B] = [2], got shape [3]"),
    ("truncate huge", lambda w: w.cache.truncate(2**70), SHAPE, "length must lie in -2**53..2**53", str(2**70)),
    ("drop too many", lambda w: w.cache.drop(6), SHAPE, "count must lie in 0..next_position", "[5, 5], got [6, 6]"),
    ("drop -1", lambda w: w.cache.drop(-1), SHAPE, "count must lie in 0..next_position", "[5, 5], got [-1, -1]"),
    ("drop float", lambda w: w.cache.drop(0.5), TYPE, "count must be an integer or integers [B], got float"),
    ("drop one too many", lambda w: w.cache.drop([0, 9]), SHAPE, "count must lie in 0..next_position", "got [0, 9]"),
    ("reorder to nobody", lambda w: w.cache.reorder([0, 2]), SHAPE, "indices must each lie", "B = 2, got [0, 2]"),
    ("reorder -1", lambda w: w.cache.reorder([-1, 0]), SHAPE, "indices must each lie", "B = 2, got [-1, 0]"),
    ("reorder too few", lambda w: w.cache.reorder([0]), SHAPE, "indices must be [B] = [2], got 1", "select"),
    ("reorder one", lambda w: w.cache.reorder(0), SHAPE, "indices must be integers [n]", "B = 2, got 0"),
    ("reorder floats", lambda w: w.cache.reorder([0.0, 1.0]), TYPE, "indices must be", "got float64"),
    ("reorder flags", lambda w: w.cache.reorder([True, False]), TYPE, "indices must be", "got bool"),
    ("reorder square", lambda w: w.cache.reorder([[0, 1]]), SHAPE, "indices must be integers [n]", "got [[0, 1]]"),
    ("layer too large", lambda w: w.cache[2], IndexError, "layer must lie in 0..1, got 2"),
    ("layer -3", lambda w: w.cache[-3], IndexError, "layer must lie in 0..1, got -3"),
    ("layer text", lambda w: w.cache["0"], TYPE, "layer must be an integer, got '0'"),
    ("layer float", lambda w: w.cache[1.0], TYPE, "layer must be an integer, got 1.0"),
    ("layer slice", lambda w: w.cache[0:1], TYPE, "layer must be an integer, got slice(0, 1, None)"),
]  # fmt: skip

SIZES = {"num_kv_heads": 1, "head_dim": 2}
MADE = [
    ("no config", lambda w: ak.make_cache(None), TYPE, "config must be a KVCacheConfig, got NoneType"),
    ("a dictionary", lambda w: ak.make_cache(SIZES), TYPE, "config must be a KVCacheConfig, got dict"),
    ("backend", lambda w: make(backend="nobody"), ak.BackendNotFoundError, "no backend named 'nobody'; available: "),
    ("path", lambda w: make(backend="numpy:best"), ak.BackendNotFoundError, "no path 'best'; available: "),
    ("no backends", lambda w: make(backend=[]), ak.BackendNotFoundError, "backend must be a name", "got []"),
    ("a number", lambda w: make(backend=3), ak.BackendNotFoundError, "backend must be a name", "got 3"),
]


def make(**options):
    return ak.make_cache(ak.KVCacheConfig(**SIZES), **options)


@pytest.mark.parametrize("row", [*APPEND, *FORGET, *MADE], ids=lambda row: row[0])
def test_caches(world, row) -> None:
    world.refuses(*row)


@pytest.mark.parametrize("row", APPEND, ids=lambda row: row[0])
def test_the_second_append_of_a_ragged_cache(world, row) -> None:
    """The same where sequences are of different lengths, and the last append was ragged."""
    world.cache.truncate([5, 2])
    world.cache[0].append(*world.token, lengths=[0, 1])
    world.cache[0].append(*world.token, lengths=[0, 0])
    world.refuses(*row)


@pytest.mark.parametrize(("name", "query", "options", "error", "parts"), [(*row[:4], row[4:]) for row in ATTEND])
def test_attending(world, name, query, options, error, parts) -> None:
    world.refuses(name, lambda w: w.cache[0].attend(query(w), **options), error, *parts)
    world.refuses(name, lambda w: w.cache[0].attend_with_lse(query(w), **options), error, *parts)
