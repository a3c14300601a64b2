"""Packed sequences are the same sequences one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import attnkit as ak

SINKS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


@pytest.fixture(params=["plain", "numpy"])
def backend(request):
    return request.getfixturevalue("plain") if request.param == "plain" else "numpy"


@pytest.fixture
def tokens(draw):
    """Give query ``[N, 4, 8]``, key ``[M, 2, 8]``, value ``[M, 2, 6]``."""

    def tokens(queries, keys, dtype=np.float32):
        return draw(queries, 4, 8, dtype=dtype), draw(keys, 2, 8, dtype=dtype), draw(keys, 2, 6, dtype=dtype)

    return tokens


def heads_first(array):
    return np.swapaxes(array, 0, 1)


def one_by_one(query, key, value, cu_q, cu_k, **options):
    parts = [
        heads_first(ak.attention(*map(heads_first, (query[q:r], key[k:m], value[k:m])), **options))
        for (q, r), (k, m) in zip(pairwise(cu_q), pairwise(cu_k), strict=True)
    ]
    return np.concatenate(parts)


OPTIONS = [
    {},
    {"mask": ak.Mask.causal()},
    {"mask": ak.Mask.causal() & ak.Mask.window(2), "scale": 0.3, "softcap": 1.5},
    {"mask": ak.Mask.prefix(1) & ak.Mask.chunked(2), "alibi": ak.alibi_slopes(4)},
    {"mask": ak.Mask.causal(), "sinks": SINKS},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("cu_q", "cu_k"),
    [
        ([0, 3, 4, 9], [0, 3, 4, 9]),
        ([0, 3, 4, 9], [0, 5, 5, 12]),  # one sequence sees no key
        ([0, 0, 4, 4], [0, 2, 6, 9]),  # two have no query
        ([0, 5], [0, 5]),
        ([0, 0, 0], [0, 0, 3]),
        ([0, 0], [0, 0]),
    ],
)
def test_packed_is_one_by_one(backend, tokens, options, cu_q, cu_k) -> None:
    arrays = tokens(cu_q[-1], cu_k[-1])
    output = ak.attention_packed(*arrays, cu_q, cu_k, backend=backend, **options)
    assert output.shape == (cu_q[-1], 4, 6)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, one_by_one(*arrays, cu_q, cu_k, backend=backend, **options), atol=1e-6)


def test_a_sequence_never_sees_another(backend, tokens) -> None:
    query, key, value = tokens(9, 9)
    cu = [0, 3, 4, 9]
    before = ak.attention_packed(query, key, value, cu, cu, backend=backend)
    key[3:], value[3:] = 1e30, np.nan
    after = ak.attention_packed(query, key, value, cu, cu, backend=backend)
    assert (before[:3] == after[:3]).all()


def test_no_sequences(backend, tokens) -> None:
    output = ak.attention_packed(*tokens(0, 0, np.float16), [0], [0], backend=backend)
    assert (output.shape, output.dtype) == ((0, 4, 6), np.float16)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda cu: np.array(cu, np.int32)])
def test_cumulative_lengths_of_any_kind(plain, tokens, kind) -> None:
    arrays, cu = tokens(5, 5), [0, 2, 5]
    expected = ak.attention_packed(*arrays, cu, cu)
    assert (ak.attention_packed(*arrays, kind(cu), kind(cu), max_q=3, max_k=np.int64(7)) == expected).all()


def test_the_context_chooses_the_backend_too(plain, kit, tokens) -> None:
    arrays = tokens(4, 4)
    ak.register(kit.spec("other"))
    with ak.trace() as calls, ak.use_backend("other"):
        ak.attention_packed(*arrays, [0, 1, 4], [0, 1, 4])
        ak.attention_packed(*arrays, [0, 4], [0, 4], backend="plain")
    assert [call.backend for call in calls] == ["other", "other", "plain"]


def test_arguments_are_left_alone(backend, tokens) -> None:
    arrays, cu = tokens(5, 5), np.array([0, 2, 5])
    before = [array.copy() for array in (*arrays, cu)]
    for array in (*arrays, cu):
        array.flags.writeable = False
    output = ak.attention_packed(*arrays, cu, cu, backend=backend)
    assert all((now == then).all() for now, then in zip((*arrays, cu), before, strict=True))
    assert not any(np.shares_memory(output, array) for array in arrays)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"cu_q": [0, 2, 4]}, ak.ShapeError, r"cu_q must rise from 0 to N = 5 without falling, got \[0, 2, 4\]"),
        ({"cu_q": [1, 2, 5]}, ak.ShapeError, "cu_q must rise from 0"),
        ({"cu_q": [0, 6, 5]}, ak.ShapeError, "cu_q must rise from 0"),
        ({"cu_k": [0, 3, 2, 5]}, ak.ShapeError, "cu_k must rise from 0 to M = 5"),
        ({"cu_k": [0, 5]}, ak.ShapeError, r"both be \[B \+ 1\], got lengths 3 and 2"),
        ({"cu_q": []}, ak.ShapeError, r"cu_q must be \[B \+ 1\] cumulative lengths"),
        ({"cu_q": 5}, ak.ShapeError, r"cu_q must be \[B \+ 1\]"),
        ({"cu_q": [[0, 2, 5]]}, ak.ShapeError, r"cu_q must be \[B \+ 1\]"),
        ({"cu_k": [0.0, 2.0, 5.0]}, ak.DTypeError, "cu_k must be an integer or integers"),
        ({"cu_q": [False, True, True]}, ak.DTypeError, "cu_q"),
        ({"max_q": 2}, ak.ShapeError, r"max_q must be >= the longest sequence in cu_q \(3\), got 2"),
        ({"max_k": 2}, ak.ShapeError, "max_k must be >= the longest sequence in cu_k"),
        ({"max_k": 3.0}, ak.DTypeError, "max_k must be an integer or None, got float"),
        ({"max_q": True}, ak.DTypeError, "max_q must be an integer or None, got bool"),
        ({"query": np.zeros((1, 5, 4, 8))}, ak.ShapeError, r"must be \[N, H, D\], \[M, K, D\], \[M, K, E\]"),
        ({"value": np.zeros((4, 2, 6), np.float32)}, ak.ShapeError, r"must be \[N, H, D\]"),
        ({"key": np.zeros((5, 3, 8), np.float32)}, ak.ShapeError, "must be"),
        ({"key": np.zeros((5, 2, 9), np.float32)}, ak.ShapeError, "common B, K, S and D"),
        ({"key": np.zeros((5, 2, 8))}, ak.DTypeError, "must share one of"),
        ({"query": [[[1.0]]]}, ak.DTypeError, "query must be an array, got list"),
        ({"value": np.ma.zeros((5, 2, 6))}, ak.DTypeError, "masked array"),
        ({"mask": ak.Mask.dense(np.ones((5, 5), bool))}, ak.ShapeError, "must be positional"),
        ({"mask": ak.Mask.documents([0] * 5, [0] * 5)}, ak.ShapeError, "must be positional"),
        ({"mask": "causal"}, ak.DTypeError, "mask must be a Mask or None, got str"),
        ({"alibi": np.zeros(3, np.float32)}, ak.ShapeError, "alibi must be"),
        ({"backend": "nobody"}, ak.BackendNotFoundError, "nobody"),
    ],
)
def test_what_does_not_fit_is_named(plain, tokens, changes, error, words) -> None:
    query, key, value = tokens(5, 5)
    arguments = {"query": query, "key": key, "value": value, "cu_q": [0, 2, 5], "cu_k": [0, 2, 5], **changes}
    with ak.trace() as calls, pytest.raises(error, match=words):
        ak.attention_packed(**arguments)
    assert calls == []


def test_what_does_not_fit_is_named_without_sequences_too(plain, tokens) -> None:
    query, key, value = tokens(0, 0)
    with pytest.raises(ak.DTypeError, match="must share one of"):
        ak.attention_packed(query, key.astype(np.float64), value, [0], [0])
    with pytest.raises(ak.DTypeError, match="mask must be a Mask"):
        ak.attention_packed(query, key, value, [0], [0], mask=5)
