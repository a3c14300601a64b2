"""Every way in which the contract decides who sees whom (A3-A9), as cases.

Sizes are odd, prime or just past a power of two on purpose: a fault at the edge of a tile hides at multiples of 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case

causal, window, prefix, chunked = ak.Mask.causal, ak.Mask.window, ak.Mask.prefix, ak.Mask.chunked
CAUSALLY: Mapping[str, Any] = {"mask": causal()}


def keep(*shape: int, share: float = 0.5) -> ak.Mask:
    """Give a dense mask of random booleans."""
    return ak.Mask.dense(np.random.default_rng(shape).random(shape) < share)


def ids(queries: tuple[int, ...], keys: tuple[int, ...], count: int = 3) -> ak.Mask:
    """Give a documents mask of random ids."""
    rng = np.random.default_rng((*queries, *keys))
    return ak.Mask.documents(rng.integers(0, count, queries), rng.integers(0, count, keys))


def packed_ids(queries: int, keys: int) -> ak.Mask:
    """Give a documents mask of sequences laid end to end, the queries at the end of the keys."""
    documents = np.arange(keys) * 5 // keys
    return ak.Mask.documents(documents[keys - queries :], documents)


def hiding_bias(*shape: int) -> np.ndarray[Any, Any]:
    """Give a bias of 0 and ``-inf``."""
    return np.where(np.random.default_rng(shape).random(shape) < 0.5, np.float32(0), np.float32(-np.inf))


def _case(label: str, queries: int, keys: int, **options: Any) -> Case:
    return Case(label=label, queries=queries, keys=keys, options=options)


PLAIN = [_case("plain", 5, 9), _case("plain", 1, 1), _case("plain", 9, 4), _case("plain", 3, 67)]

CAUSAL = [
    _case("causal", queries, keys, mask=causal())
    for queries, keys in ((1, 1), (7, 7), (3, 11), (11, 3), (1, 17), (33, 67), (67, 33))
]

WINDOWS = [
    _case(f"window{left},{right}", queries, keys, mask=window(left, right))
    for left, right in ((1, 0), (4, 0), (4, 2), (None, 1), (3, None))
    for queries, keys in ((9, 9), (5, 13), (13, 5))
] + [
    _case("window37", 40, 161, mask=window(37)),
    _case("window1100", 3, 1300, mask=window(1100)),
    _case("window20,20", 70, 70, mask=window(20, 20)),
]

PREFIXES = [
    _case(f"prefix{n}", queries, keys, mask=prefix(n))
    for n in (0, 1, 4, 50)
    for queries, keys in ((8, 8), (4, 9), (9, 4))
] + [_case("prefix17", 33, 40, mask=prefix(17))]

CHUNKS = [
    _case(f"chunked{n}", queries, keys, mask=chunked(n))
    for n in (1, 4, 5)
    for queries, keys in ((9, 9), (5, 11), (11, 5))
] + [_case("chunked16", 40, 70, mask=chunked(16))]

_FAR_IDS = np.array([-1, 255, 127, 2**31 - 1, 0, 256, -2, 2**16, 128])  # equal only where some digits are lost
DOCUMENTS = [
    _case("documents", 7, 9, mask=ids((7,), (9,))),
    _case("documents-batch", 7, 9, mask=ids((2, 7), (2, 9))),
    _case("documents-mixed", 7, 9, mask=ids((7,), (2, 9))),
    _case("documents-far", 7, 9, mask=ak.Mask.documents(_FAR_IDS[2:9], _FAR_IDS)),
    _case("documents-long", 20, 70, mask=ids((2, 20), (2, 70))),
]

DENSE = [
    _case(f"dense{index}", 6, 9, mask=keep(*shape))
    for index, shape in enumerate(((6, 9), (2, 1, 6, 9), (1, 2, 6, 9), (2, 2, 6, 9), (2, 2, 1, 9), (1, 1, 6, 1)))
] + [
    _case("dense-long", 20, 70, mask=keep(2, 2, 20, 70)),
    _case("bias-inf", 6, 9, bias=hiding_bias(2, 2, 6, 9)),
    _case("bias-inf-broadcast", 6, 9, bias=hiding_bias(6, 9)),
]

LENGTHS = [
    _case("kv-lengths", 5, 9, kv_lengths=np.array([9, 4])),
    _case("kv-lengths-causal", 5, 9, kv_lengths=np.array([6, 9]), mask=causal()),
    _case("kv-lengths-short-causal", 5, 9, kv_lengths=np.array([3, 8]), mask=causal()),
    _case("kv-lengths-zero", 5, 9, kv_lengths=np.array([0, 7])),
    _case("kv-lengths-number", 5, 9, kv_lengths=5, mask=causal()),
    _case("kv-lengths-window", 5, 70, kv_lengths=np.array([41, 66]), mask=window(7)),
    _case("kv-lengths-decode", 1, 40, kv_lengths=np.array([17, 33])),
    _case("query-lengths", 6, 6, query_lengths=np.array([4, 6])),
    _case("query-lengths-causal", 6, 9, query_lengths=np.array([2, 5]), mask=causal()),
    _case("query-lengths-zero", 6, 9, query_lengths=np.array([0, 3]), mask=causal()),
    _case("both-lengths", 6, 9, query_lengths=np.array([5, 3]), kv_lengths=np.array([7, 9]), mask=causal()),
]

OFFSETS = [
    _case("query-offset", 5, 9, query_offset=2, mask=causal()),
    _case("query-offset-each", 5, 9, query_offset=np.array([0, 7]), mask=causal()),
    _case("query-offset-negative", 5, 9, query_offset=-2, mask=causal()),
    _case("key-offset", 5, 9, key_offset=3, mask=chunked(4)),
    _case("key-offset-prefix", 5, 9, key_offset=3, mask=prefix(6)),
    _case("both-offsets", 5, 9, query_offset=np.array([6, 9]), key_offset=np.array([4, 2]), mask=causal()),
    _case("both-offsets-window", 5, 40, query_offset=45, key_offset=20, mask=window(6, 1)),
    _case("offset-unmasked", 5, 9, query_offset=-50),
]

JOINED = [
    _case("causal+window", 9, 13, mask=causal() & window(5, 3)),
    _case("causal+chunked", 9, 13, mask=causal() & chunked(4)),
    _case("window+chunked", 9, 13, mask=window(5, 1) & chunked(6)),
    _case("prefix+window", 11, 11, mask=prefix(4) & window(6, 3)),
    _case("prefix+chunked", 11, 11, mask=prefix(6) & chunked(4)),
    _case("prefix+documents", 9, 9, mask=prefix(3) & ids((9,), (9,))),
    _case("prefix+dense", 9, 13, mask=prefix(8) & keep(9, 13)),
    _case("window+documents", 9, 13, mask=window(5, 1) & ids((9,), (13,))),
    _case("window+dense", 9, 13, mask=window(5, 1) & keep(9, 13)),
    _case("chunked+documents", 9, 13, mask=chunked(4) & ids((9,), (13,))),
    _case("chunked+dense", 9, 13, mask=chunked(4) & keep(9, 13)),
    _case("documents+dense", 9, 13, mask=ids((9,), (13,)) & keep(9, 13)),
    _case("causal+documents", 9, 9, mask=causal() & ids((2, 9), (2, 9))),
    _case("causal+dense", 9, 13, mask=causal() & keep(2, 1, 9, 13)),
    _case("dense+dense", 6, 9, mask=keep(6, 9, share=0.7) & keep(2, 2, 6, 9, share=0.7)),
    _case("chunked+chunked", 12, 12, mask=chunked(4) & chunked(6)),
    _case("window+places", 6, 20, mask=window(5), kv_lengths=np.array([13, 20]), query_offset=np.array([9, 12])),
    _case("dense+lengths", 6, 9, mask=keep(6, 9), kv_lengths=np.array([5, 8])),
]

SOFTCAPPED = [
    _case("softcap", 9, 13, mask=causal(), softcap=2.0),
    _case("softcap-dense", 9, 13, mask=keep(2, 2, 9, 13), softcap=2.0),
]


def _grouped(case: Case, kv_heads: int) -> Case:
    return replace(case, label=f"grouped-{case.label}", heads=4, kv_heads=kv_heads)


GROUPED = [
    _grouped(_case("plain", 5, 9), 2),
    _grouped(_case("causal", 5, 9, mask=causal()), 2),
    _grouped(_case("causal", 5, 9, mask=causal()), 1),
    _grouped(_case("window", 9, 40, mask=window(6)), 2),
    _grouped(_case("dense", 6, 9, mask=keep(2, 4, 6, 9)), 2),
    _grouped(_case("bias-inf", 6, 9, bias=hiding_bias(2, 4, 6, 9)), 2),
    _grouped(_case("decode", 1, 40, kv_lengths=np.array([17, 33])), 2),
]


def _long(label: str, queries: int = 150, keys: int = 1300, **options: Any) -> Case:
    """Give a case that goes beyond the tiles in common use: 128 queries, 1024 keys."""
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": queries, "keys": keys, "head_dim": 128}
    return Case(label=f"long-{label}", options=options, **sizes)  # type: ignore[arg-type]  # sizes are integers


LONG = [
    _long("causal", mask=causal()),
    _long("causal-square", 300, 300, mask=causal()),
    _long("window", mask=window(200, 30)),
    _long("prefix", mask=prefix(1100)),
    _long("chunked", mask=chunked(300)),
    _long("documents", mask=packed_ids(150, 1300)),
    _long("dense", mask=keep(150, 1300)),
    _long("bias-inf", bias=hiding_bias(1, 1, 150, 1300)),
    _long("lengths", mask=causal(), kv_lengths=1100),
    _long("offsets", mask=window(500, 10), query_offset=600, key_offset=80),
    _long("rows", 3, 2100, mask=causal()),
    _long("decode", 1, 2100),
]

STRUCTURES = [
    *PLAIN,
    *CAUSAL,
    *WINDOWS,
    *PREFIXES,
    *CHUNKS,
    *DOCUMENTS,
    *DENSE,
    *LENGTHS,
    *OFFSETS,
    *JOINED,
    *GROUPED,
]
