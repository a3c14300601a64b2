"""Wrong arrays and options of ``attention``."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak

DTYPES = "float16, bfloat16, float32, float64"
BHTD, BKSE, FOUR = "[B, H, T, D]", "[B, K, S, E]", "[B, H, T, S] = [2, 4, 3, 5]"
F32 = np.float32
SHAPE, TYPE, REFUSED, APART = ak.ShapeError, ak.DTypeError, ak.UnsupportedError, ak.DeviceError


def as_type(dtype):
    """Make a call with query, key and value of some type."""
    return lambda w: ak.attention(*(array.astype(dtype) for array in w.arrays))


def mixed(w):
    return w.query.astype(np.float16), w.key.astype(ml_dtypes.bfloat16), w.value.astype(ml_dtypes.bfloat16)


def on_numpy(w):
    return ak.attention(*[w.foreign()] * 3, backend="numpy")


ARRAYS = [
    ("query is a list", lambda w: ak.attention(w.query.tolist(), w.key, w.value), TYPE, "query", "got list"),
    ("key is None", lambda w: ak.attention(w.query, None, w.value), TYPE, "key must be an array", "NoneType"),
    ("value is a number", lambda w: ak.attention(w.query, w.key, 1.0), TYPE, "value", "got float"),
    ("query is a scalar", lambda w: ak.attention(F32(1), w.key, w.value), TYPE, "query", "got float32"),
    ("one axis", lambda w: ak.attention(*(a[0, 0, 0] for a in w.arrays)), SHAPE, "[T, D]", "got [8], [8], [6]"),
    ("five axes", lambda w: ak.attention(*(a[None] for a in w.arrays)), SHAPE, BHTD, "[1, 2, 4, 3, 8]"),
    ("ranks differ", lambda w: ak.attention(w.query[0], *w.arrays[1:]), SHAPE, BHTD, "got [4, 3, 8], [2"),
    ("batches differ", lambda w: ak.attention(w.query[:1], *w.arrays[1:]), SHAPE, BHTD, "[1, 4, 3, 8]"),
    ("head sizes differ", lambda w: ak.attention(w.query[..., 1:], *w.arrays[1:]), SHAPE, BHTD, "[2, 4, 3, 7]"),
    ("key lengths differ", lambda w: ak.attention(*w.arrays[:2], w.value[:, :, 1:]), SHAPE, BKSE, "[2, 2, 4, 6]"),
    ("key heads differ", lambda w: ak.attention(*w.arrays[:2], w.value[:, :1]), SHAPE, BKSE, "[2, 1, 5, 6]"),
    ("heads do not divide", lambda w: ak.attention(w.query[:, 1:], *w.arrays[1:]), SHAPE, "H = 3, K = 2"),
    ("no key heads", lambda w: ak.attention(w.query, w.key[:, :0], w.value[:, :0]), SHAPE, "H = 4, K = 0"),
    ("no head size", lambda w: ak.attention(w.query[..., :0], w.key[..., :0], w.value), SHAPE, "D >= 1", "D = 0"),
    ("integers", as_type(np.int64), TYPE, "query, key, value", DTYPES, "got int64"),
    ("complex", as_type(np.complex64), TYPE, "query, key, value", DTYPES, "got complex64"),
    ("booleans", as_type(bool), TYPE, "query, key, value", DTYPES, "got bool"),
    ("objects", as_type(object), TYPE, "query, key, value", DTYPES, "got object"),
    ("text", as_type("U1"), TYPE, "query, key, value", DTYPES, "got <U1"),
    ("float8", as_type(ml_dtypes.float8_e4m3fn), TYPE, "query, key, value", DTYPES, "got float8_e4m3fn"),
    ("long double", as_type(np.longdouble), TYPE, "query, key, value", np.dtype(np.longdouble).name),
    ("mixed", lambda w: ak.attention(w.query, w.key.astype(float), w.value), TYPE, "float32, float64, float32"),
    ("mixed 16 bits", lambda w: ak.attention(*mixed(w)), TYPE, "query, key, value", "float16, bfloat16, bfloat16"),
    ("masked query", lambda w: ak.attention(np.ma.array(w.query), *w.arrays[1:]), TYPE, "query", "masked array"),
    ("masked value", lambda w: ak.attention(*w.arrays[:2], np.ma.array(w.value)), TYPE, "value", "masked array"),
    ("two libraries", lambda w: ak.attention(w.query, w.foreign(), w.value), TYPE, "one array library", "numpy, "),
    ("two devices", lambda w: ak.attention(w.foreign(), w.foreign(cuda=1), w.foreign()), APART, "cuda:0, cuda:1"),
    ("host and device", lambda w: ak.attention(w.foreign(cuda=None), *[w.foreign()] * 2), APART, "cpu, cuda:0"),
    ("nobody's", lambda w: ak.attention(*[w.foreign()] * 3), REFUSED, "numpy: does not own", "Foreign on cuda:0"),
    ("of another library", on_numpy, REFUSED, "query must be an array of numpy, got", "device must be cpu"),
    ("no value columns", lambda w: ak.attention(*w.arrays[:2], w.value[..., :0]), REFUSED, "value_dim", "got 0"),
]  # fmt: skip

OPTIONS = [
    ("scale nan", {"scale": np.nan}, SHAPE, "scale must be finite, got nan"),
    ("scale inf", {"scale": -np.inf}, SHAPE, "scale must be finite, got -inf"),
    ("scale too large", {"scale": 10**400}, SHAPE, "scale must be finite, got inf"),
    ("scale text", {"scale": "0.5"}, TYPE, "scale must be a real number or None, got str"),
    ("scale boolean", {"scale": True}, TYPE, "scale must be a real number or None, got bool"),
    ("scale NumPy boolean", {"scale": np.True_}, TYPE, "scale must be a real number or None, got bool"),
    ("scale complex", {"scale": 1j}, TYPE, "scale must be a real number or None, got complex"),
    ("scale array", {"scale": np.ones(1)}, TYPE, "scale must be a real number or None, got ndarray"),
    ("softcap 0", {"softcap": 0}, SHAPE, "softcap must be > 0, or None for no cap, got 0.0"),
    ("softcap -1", {"softcap": -1}, SHAPE, "softcap must be > 0, or None for no cap, got -1.0"),
    ("softcap nan", {"softcap": np.nan}, SHAPE, "softcap must be finite, got nan"),
    ("softcap text", {"softcap": "30"}, TYPE, "softcap must be a real number or None, got str"),
    ("bias integers", {"bias": np.zeros((3, 5), int)}, TYPE, "bias must hold floats", "int64", "Mask.dense"),
    ("bias booleans", {"bias": np.ones((3, 5), bool)}, TYPE, "bias must hold floats", "bool", "Mask.dense"),
    ("bias float8", {"bias": np.ones((3, 5), ml_dtypes.float8_e5m2)}, TYPE, "bias", DTYPES, "float8_e5m2"),
    ("bias list", {"bias": [[0.0] * 5] * 3}, TYPE, "bias must be an array, got list"),
    ("bias number", {"bias": 0.5}, TYPE, "bias must be an array, got float"),
    ("bias masked", {"bias": np.ma.array(np.ones((3, 5)))}, TYPE, "bias", "masked array"),
    ("bias too narrow", {"bias": np.ones((3, 4), F32)}, SHAPE, "bias must broadcast", FOUR, "got [3, 4]"),
    ("bias five axes", {"bias": np.ones((1, 1, 1, 3, 5), F32)}, SHAPE, "bias", FOUR, "got [1, 1, 1, 3, 5]"),
    ("alibi for other heads", {"alibi": np.ones(3, F32)}, SHAPE, "alibi must be [H] or [B, H]", "H = 4", "[3]"),
    ("alibi [H, B]", {"alibi": np.ones((4, 2), F32)}, SHAPE, "alibi must be [H] or [B, H]", "got shape [4, 2]"),
    ("alibi integers", {"alibi": np.ones(4, int)}, TYPE, "alibi must hold floats", "int64"),
    ("alibi flag", {"alibi": True}, TYPE, "alibi must be an array, got bool"),
    ("sinks for key heads", {"sinks": np.ones(2, F32)}, SHAPE, "sinks must be [H] with H = 4", "got shape [2]"),
    ("sinks [B, H]", {"sinks": np.ones((2, 4), F32)}, SHAPE, "sinks must be [H]", "got shape [2, 4]"),
    ("sinks number", {"sinks": 0.5}, TYPE, "sinks must be an array, got float"),
    ("an option of others", {"dropout": 0.1}, TypeError, "unexpected keyword argument 'dropout'"),
    ("a flag of others", {"causal": True}, TypeError, "unexpected keyword argument 'causal'"),
]

LENGTHS = [
    ("too long", 6, SHAPE, "kv_lengths must lie in 0..S = 0..5, got [6, 6]"),
    ("negative", [-1, 2], SHAPE, "kv_lengths must lie in 0..S = 0..5, got [-1, 2]"),
    ("floats", [1.0, 2.0], TYPE, "kv_lengths must be an integer or integers [B], got float64"),
    ("one float", 1.5, TYPE, "kv_lengths must be an integer or integers [B], got float"),
    ("too many", [1, 2, 3], SHAPE, "kv_lengths must be an integer or [B] = [2], got shape [3]"),
    ("none", [], SHAPE, "kv_lengths must be an integer or [B] = [2], got shape [0]"),
    ("a column", [[1], [2]], SHAPE, "kv_lengths must be an integer or [B] = [2], got shape [2, 1]"),
    ("ragged", [[1], [1, 2]], TYPE, "kv_lengths must be integers", "list"),
    ("a flag", True, TYPE, "kv_lengths must be an integer or integers [B], got bool"),
    ("flags", [True, False], TYPE, "kv_lengths must be an integer or integers [B], got bool"),
    ("text", "3", TYPE, "kv_lengths must be an integer or integers [B], got str"),
    ("masked", np.ma.array([1, 2]), TYPE, "kv_lengths must be integers, got a masked array"),
    ("beyond 64 bits", 2**70, SHAPE, "kv_lengths must lie in -2**53..2**53", str(2**70)),
    ("unsigned", np.array([2**64 - 1, 2], np.uint64), SHAPE, "kv_lengths", str(2**64 - 1)),
]

OFFSETS = [
    ("a float", 1.0, TYPE, "must be an integer or integers [B], got float"),
    ("too many", [1, 2, 3], SHAPE, "must be an integer or [B] = [2], got shape [3]"),
    ("a flag", False, TYPE, "must be an integer or integers [B], got bool"),
    ("beyond 64 bits", -(2**70), SHAPE, "must lie in -2**53..2**53", str(-(2**70))),
    ("where sums overflow", 2**63 - 1, SHAPE, "must lie in -2**53..2**53", str(2**63 - 1)),
    ("unsigned", np.array([2**63, 0], np.uint64), SHAPE, "must lie in -2**53..2**53", str(2**63)),
]


@pytest.mark.parametrize("row", ARRAYS, ids=lambda row: row[0])
def test_arrays(world, row) -> None:
    world.refuses(*row)


@pytest.mark.parametrize(("name", "options", "error", "parts"), [(*row[:3], row[3:]) for row in OPTIONS])
def test_options(world, name, options, error, parts) -> None:
    world.refuses(name, lambda w: w.attend(**options), error, *parts)


@pytest.mark.parametrize(
    "name", ["bias", "alibi", "sinks", "query_lengths", "kv_lengths", "query_offset", "key_offset"]
)
def test_options_of_another_library(world, name) -> None:
    shape, dtype = {"bias": ((3, 5), "float32"), "alibi": ((4,), "float32"), "sinks": ((4,), "float32")}.get(
        name, ((2,), "int64")
    )
    foreign = world.foreign(*shape, dtype=dtype)
    parts = f"{name} must come from the query's array library, numpy, got", "Foreign"
    world.refuses(name, lambda w: w.attend(**{name: foreign}), TYPE, *parts)


@pytest.mark.parametrize(("name", "lengths", "error", "parts"), [(*row[:3], row[3:]) for row in LENGTHS])
def test_lengths(world, name, lengths, error, parts) -> None:
    world.refuses(name, lambda w: w.attend(kv_lengths=lengths), error, *parts)


@pytest.mark.parametrize("argument", ["query_offset", "key_offset"])
@pytest.mark.parametrize(("name", "offset", "error", "parts"), [(*row[:3], row[3:]) for row in OFFSETS])
def test_offsets(world, argument, name, offset, error, parts) -> None:
    world.refuses(name, lambda w: w.attend(mask=ak.Mask.causal(), **{argument: offset}), error, argument, *parts)


def test_query_lengths_are_bounded_by_queries(world) -> None:
    message = "query_lengths must lie in 0..T = 0..3, got [4, 4]"
    world.refuses("", lambda w: w.attend(query_lengths=4), SHAPE, message)


def test_every_door_checks_alike(world) -> None:
    """``attention_with_lse`` and ``explain`` say what ``attention`` says."""
    for door in (ak.attention, ak.attention_with_lse, ak.explain):
        world.refuses("", lambda w, door=door: door(w.query, w.key, None), TYPE, "value", "NoneType")
        world.refuses("", lambda w, door=door: door(*w.arrays, softcap=0), SHAPE, "softcap", "0.0")
        world.refuses("", lambda w, door=door: door(*w.arrays, mask="causal"), TYPE, "mask", "str")
