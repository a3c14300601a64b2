"""Wrong calls of ``merge``, ``attention_packed``, ``MultiHeadAttention`` and ``alibi_slopes``."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak

SHAPE, TYPE = ak.ShapeError, ak.DTypeError
F32 = np.float32
NHD = "query, key, value must be [N, H, D], [M, K, D], [M, K, E]"
PART = "output [..., T, E] = [2, 4, 3, 6] with lse [..., T] = [2, 4, 3]"


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


OUT, LSE = ones(2, 4, 3, 6), ones(2, 4, 3)
GOOD = (OUT, LSE)
PACKED = ones(5, 4, 8), ones(7, 2, 8), ones(7, 2, 6)
WEIGHTS = {"wq": ones(10, 32), "wk": ones(10, 16), "wv": ones(10, 12), "wo": ones(24, 10)}
CONFIG = ak.AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=6)


def merge(*parts):
    return lambda w: ak.merge(*parts)


def packed(cu_q, cu_k, arrays=PACKED, **options):
    return lambda w: ak.attention_packed(*arrays, cu_q, cu_k, backend="numpy", **options)


def make(config=CONFIG, **weights):
    return ak.MultiHeadAttention(config, **{**WEIGHTS, **weights}, backend="numpy")


MERGE = [
    ("nothing", merge(), SHAPE, "merge needs at least one (output, lse) part, got none"),
    ("no pair", merge(GOOD, OUT), TYPE, "part 1 must be a pair (output, lse) of arrays, got ndarray"),
    ("three in a pair", merge((OUT, LSE, LSE)), TYPE, "part 0 must be a pair (output, lse) of arrays, got tuple"),
    ("a list of pairs", merge([GOOD, GOOD]), TYPE, "output of part 0 must be an array, got tuple"),
    ("an output list", merge(GOOD, (OUT.tolist(), LSE)), TYPE, "output of part 1 must be an array, got list"),
    ("no lse", merge((OUT, None)), TYPE, "lse of part 0 must be an array, got NoneType"),
    ("lse keeps an axis", merge((OUT, LSE[..., None])), SHAPE, "part 0", PART, "with [2, 4, 3, 1]"),
    ("shapes differ", merge(GOOD, (OUT[:1], LSE[:1])), SHAPE, "part 1", PART, "got [1, 4, 3, 6] with [1, 4, 3]"),
    ("no axes", merge((np.array(1, F32), np.array(1, F32))), SHAPE, "output [..., T, E]", "got [] with []"),
    ("types differ", merge(GOOD, (OUT.astype(np.float16), LSE)), TYPE, "part 1 must be float32", "got float16 with"),
    ("lse types differ", merge(GOOD, (OUT, LSE.astype(float))), TYPE, "with lse float32", "got float32 with float64"),
    ("lse float16", merge((OUT, LSE.astype(np.float16))), TYPE, "lse must be float32 or float64, got float16"),
    ("integers", merge((OUT.astype(int), LSE)), TYPE, "output must be one of float16", "got int64"),
    ("complex", merge((OUT + 0j, LSE)), TYPE, "output must be one of float16", "got complex64"),
    ("masked", merge((np.ma.array(OUT), LSE)), TYPE, "output of part 0 must be a plain array, got a masked array"),
    ("other library", lambda w: ak.merge(GOOD, (w.foreign(), LSE)), TYPE, "output of part 1 must come from", "Foreign"),
    ("other device", lambda w: ak.merge((w.foreign(), w.foreign(cuda=1))), ak.DeviceError, "lse of part 0", "cuda:1"),
    ("nobody's arrays", lambda w: ak.merge((w.foreign(3, 4), w.foreign(3))), TYPE, "library of the array", "Foreign"),
    ("axis", lambda w: ak.merge(GOOD, axis=0), TypeError, "unexpected keyword argument 'axis'"),
]  # fmt: skip

STARTS = [
    ("not from 0", packed([1, 5], [0, 7]), SHAPE, "cu_q must rise from 0 to N = 5 without falling, got [1, 5]"),
    ("falling", packed([0, 4, 3, 5], [0, 2, 4, 7]), SHAPE, "cu_q must rise from 0 to N = 5", "got [0, 4, 3, 5]"),
    ("wrong end", packed([0, 5], [0, 6]), SHAPE, "cu_k must rise from 0 to M = 7 without falling, got [0, 6]"),
    ("beyond the end", packed([0, 5], [0, 9]), SHAPE, "cu_k must rise from 0 to M = 7 without falling, got [0, 9]"),
    ("two axes", packed([[0, 5]], [0, 7]), SHAPE, "cu_q must be [B + 1] cumulative lengths, got shape [1, 2]"),
    ("floats", packed([0.0, 5.0], [0, 7]), TYPE, "cu_q must be", "integers [B], got float64"),
    ("flags", packed([False, True], [0, 7]), TYPE, "cu_q must be", "got bool"),
    ("ragged", packed([[0], [1, 5]], [0, 7]), TYPE, "cu_q must be integers on the host, got list"),
    ("masked", packed(np.ma.array([0, 5]), [0, 7]), TYPE, "cu_q must be integers, got a masked array"),
    ("nothing", packed([], [0, 7]), SHAPE, "cu_q must be [B + 1] cumulative lengths, got shape [0]"),
    ("a number", packed(5, [0, 7]), SHAPE, "cu_q must be [B + 1] cumulative lengths, got shape []"),
    ("other counts", packed([0, 2, 5], [0, 7]), SHAPE, "cu_q and cu_k must both be [B + 1], got lengths 3 and 2"),
    ("max_q too small", packed([0, 2, 5], [0, 3, 7], max_q=2), SHAPE, "max_q must be >= the longest", "(3), got 2"),
    ("max_k too small", packed([0, 2, 5], [0, 3, 7], max_k=3), SHAPE, "max_k must be >= the longest", "(4), got 3"),
    ("max_q float", packed([0, 5], [0, 7], max_q=5.0), TYPE, "max_q must be an integer or None, got float"),
    ("max_k flag", packed([0, 5], [0, 7], max_k=True), TYPE, "max_k must be an integer or None, got bool"),
    ("dense mask", packed([0, 5], [0, 7], mask=ak.Mask.dense(ones(5, 7) > 0)), SHAPE, "positional", "bool[5, 7]"),
    ("documents", packed([0, 5], [0, 7], mask=ak.Mask.documents([0], [0])), SHAPE, "mask", "positional", "documents"),
    ("mask text", packed([0, 5], [0, 7], mask="causal"), TYPE, "mask must be a Mask or None, got str"),
    ("scale", packed([0, 5], [0, 7], scale=np.nan), SHAPE, "scale must be finite, got nan"),
    ("slopes [B, H]", packed([0, 2, 5], [0, 3, 7], alibi=ones(2, 4)), SHAPE, "alibi must be [H]", "H = 4", "[2, 4]"),
    ("four axes", packed([0, 2], [0, 2], [a[None] for a in PACKED]), SHAPE, NHD, "[1, 5, 4, 8]"),
    ("tokens differ", packed([0, 5], [0, 7], (*PACKED[:2], ones(6, 2, 6))), SHAPE, NHD, "[6, 2, 6]"),
    ("heads", packed([0, 5], [0, 7], (ones(5, 3, 8), *PACKED[1:])), SHAPE, "multiple", "H = 3, K = 2"),
    ("a list", packed([0, 5], [0, 7], ([1.0], *PACKED[1:])), TYPE, "query must be an array, got list"),
    ("bias", packed([0, 5], [0, 7], bias=ones(5, 7)), TypeError, "unexpected keyword argument 'bias'"),
]  # fmt: skip

MODULE = [
    ("no config", lambda w: make({"num_heads": 4}), TYPE, "config must be an AttentionConfig, got dict"),
    ("wq", lambda w: make(wq=ones(10, 31)), SHAPE, "wq must be [M, H D] with 32 on axis 1, got [10, 31]"),
    ("wk", lambda w: make(wk=ones(10, 15)), SHAPE, "wk must be [M, K D] with 16 on axis 1, got [10, 15]"),
    ("wv", lambda w: make(wv=ones(12)), SHAPE, "wv must be [M, K E] with 12 on axis 1, got [12]"),
    ("wo", lambda w: make(wo=ones(23, 10)), SHAPE, "wo must be [H E, M] with 24 on axis 0, got [23, 10]"),
    ("wq list", lambda w: make(wq=[[1.0]]), TYPE, "wq must be an array, got list"),
    ("bq", lambda w: make(bq=ones(31)), SHAPE, "bq must be [32], got [31]"),
    ("bo list", lambda w: make(bo=[0.0] * 10), TYPE, "bo must be an array, got list"),
    ("x one axis", lambda w: make()(ones(10)), SHAPE, "x must be [T, M] or [B, T, M] with M = 10, got [10]"),
    ("x width", lambda w: make()(ones(3, 9)), SHAPE, "x must be [T, M] or [B, T, M] with M = 10, got [3, 9]"),
    ("x list", lambda w: make()([[1.0] * 10]), TYPE, "x must be an array, got list"),
    ("x None", lambda w: make()(None), TYPE, "x must be an array, got NoneType"),
    ("context width", lambda w: make()(ones(3, 10), ones(4, 9)), SHAPE, "context must have", "M = 10, got [4, 9]"),
    ("context batch", lambda w: make()(ones(2, 3, 10), ones(1, 3, 10)), SHAPE, "context must have", "[1, 3, 10]"),
    ("context and cache", lambda w: make()(ones(2, 3, 10), ones(2, 3, 10), cache=w.cache[0]), SHAPE, "context"),
    ("whole cache", lambda w: make()(ones(2, 1, 10), cache=w.cache), TYPE, "cache must be one layer"),
    ("cache batch", lambda w: make()(ones(1, 1, 10), cache=w.cache[0]), SHAPE, "key, value", "got [1, 2, 1, 8]"),
    ("cache full", lambda w: make()(ones(2, 4, 10), cache=w.cache[0]), ak.CacheCapacityError, "room for 9 tokens"),
    ("kv_lengths", lambda w: make()(ones(3, 10), kv_lengths=9), SHAPE, "kv_lengths must lie in 0..S = 0..3, got [9]"),
    ("slopes 0", lambda w: ak.alibi_slopes(0), SHAPE, "num_heads must be >= 1, got 0"),
    ("slopes float", lambda w: ak.alibi_slopes(4.0), TYPE, "num_heads must be an integer, got 4.0"),
    ("slopes text", lambda w: ak.alibi_slopes("4"), TYPE, "num_heads must be an integer, got '4'"),
]  # fmt: skip


@pytest.mark.parametrize("row", MERGE, ids=lambda row: row[0])
def test_merge(world, row) -> None:
    before = OUT.tobytes(), LSE.tobytes()
    world.refuses(*row)
    assert (OUT.tobytes(), LSE.tobytes()) == before


@pytest.mark.parametrize("row", STARTS, ids=lambda row: row[0])
def test_packed(world, row) -> None:
    before = [array.tobytes() for array in PACKED]
    world.refuses(*row)
    assert [array.tobytes() for array in PACKED] == before


@pytest.mark.parametrize("row", MODULE, ids=lambda row: row[0])
def test_multihead_and_slopes(world, row) -> None:
    world.refuses(*row)
