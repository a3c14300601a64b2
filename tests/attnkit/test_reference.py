"""The oracle, against hand-written tables, against its second form, and against 50-digit arithmetic.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from attnkit.errors import DTypeError, ShapeError
from attnkit.numerics import FLOAT64
from attnkit.reference import attention, streaming_attention, visible

B, H, K, T, S, D, E = 2, 4, 2, 3, 5, 3, 2
CAUSAL = ("causal",)
INF = math.inf


def arrays(seed: int = 0, *, factor: float = 1.0, shape: tuple[int, ...] = (B, H, K, T, S, D, E)) -> list[Any]:
    batch, heads, kv_heads, rows, keys, head_dim, value_dim = shape
    rng = np.random.default_rng(seed)
    return [
        factor * rng.standard_normal((batch, heads, rows, head_dim)),
        rng.standard_normal((batch, kv_heads, keys, head_dim)),
        rng.standard_normal((batch, kv_heads, keys, value_dim)),
    ]


def drawn(rows: int, keys: int, *, b: int = 0, h: int = 0, batch: int = 2, heads: int = 2, **options: Any) -> list[str]:
    """Draw the predicate for one head, one string per row: ``x`` where the row sees the key, ``.`` elsewhere."""
    query, key = np.zeros((batch, heads, rows, 1)), np.zeros((batch, 1, keys, 1))
    problem = attention(query, key, key, **options).problem
    return ["".join("x" if visible(problem, b, h, i, j) else "." for j in range(keys)) for i in range(rows)]


TABLES: list[tuple[str, tuple[int, int], dict[str, Any], str]] = [
    ("no mask", (2, 3), {}, "xxx xxx"),
    ("no mask, more rows than keys", (3, 2), {}, "xx xx xx"),
    ("causal", (3, 3), {"mask": [CAUSAL]}, "x.. xx. xxx"),
    ("causal, fewer rows than keys", (3, 5), {"mask": [CAUSAL]}, "xxx.. xxxx. xxxxx"),
    ("causal, more rows than keys", (5, 3), {"mask": [CAUSAL]}, "... ... x.. xx. xxx"),
    ("causal, one row", (1, 4), {"mask": [CAUSAL]}, "xxxx"),
    ("window counts the token itself", (4, 4), {"mask": [("window", 1, 0)]}, "x... .x.. ..x. ...x"),
    ("window of two", (4, 4), {"mask": [("window", 2, 0)]}, "x... xx.. .xx. ..xx"),
    ("window of two, one ahead", (4, 4), {"mask": [("window", 2, 1)]}, "xx.. xxx. .xxx ..xx"),
    ("window, unlimited left", (3, 3), {"mask": [("window", None, 0)]}, "x.. xx. xxx"),
    ("window, unlimited right", (3, 3), {"mask": [("window", 1, None)]}, "xxx .xx ..x"),
    ("window, unlimited", (2, 3), {"mask": [("window", None, None)]}, "xxx xxx"),
    ("window, fewer rows than keys", (2, 5), {"mask": [("window", 3, 0)]}, ".xxx. ..xxx"),
    ("window, more rows than keys", (4, 2), {"mask": [("window", 2, 0)]}, ".. .. x. xx"),
    ("prefix", (4, 4), {"mask": [("prefix", 2)]}, "xx.. xx.. xxx. xxxx"),
    ("prefix of none", (3, 3), {"mask": [("prefix", 0)]}, "x.. xx. xxx"),
    ("prefix is about positions", (4, 4), {"mask": [("prefix", 3)], "key_offset": 1}, "xx.. xx.. xxx. xxxx"),
    ("chunked", (4, 4), {"mask": [("chunked", 2)]}, "xx.. xx.. ..xx ..xx"),
    ("chunked and causal", (4, 4), {"mask": [("chunked", 2), CAUSAL]}, "x... xx.. ..x. ..xx"),
    ("chunked, negative positions", (4, 2), {"mask": [("chunked", 2)]}, ".. .. xx xx"),
    ("chunked is about positions", (4, 4), {"mask": [("chunked", 2)], "key_offset": 1}, "x... .xx. .xx. ...x"),
    ("documents", (3, 3), {"mask": [("documents", [7, 7, 8], [7, 8, 8])]}, "x.. x.. .xx"),
    ("documents are about indices", (2, 2), {"mask": [("documents", [0, 1], [0, 1])], "key_offset": 9}, "x. .x"),
    ("dense", (2, 2), {"mask": [("dense", np.array([[True, False], [True, True]]))]}, "x. xx"),
    ("dense over keys", (2, 3), {"mask": [("dense", np.array([True, False, True]))]}, "x.x x.x"),
    ("dense and causal", (2, 2), {"mask": [CAUSAL, ("dense", np.array([[False], [True]]))]}, ".. xx"),
    ("empty conjunction", (1, 2), {"mask": []}, "xx"),
    ("mask object", (2, 2), {"mask": SimpleNamespace(terms=(CAUSAL,))}, "x. xx"),
    ("key length", (2, 4), {"kv_lengths": 2}, "xx.. xx.."),
    ("key length moves the diagonal", (2, 4), {"mask": [CAUSAL], "kv_lengths": 3}, "xx.. xxx."),
    ("key length below the rows", (3, 4), {"mask": [CAUSAL], "kv_lengths": 2}, ".... x... xx.."),
    ("no keys", (2, 3), {"kv_lengths": 0}, "... ..."),
    ("query length", (3, 3), {"query_lengths": 1}, "xxx ... ..."),
    ("query length moves the diagonal", (3, 3), {"mask": [CAUSAL], "query_lengths": 2}, "xx. xxx ..."),
    ("both lengths", (3, 4), {"mask": [CAUSAL], "query_lengths": 2, "kv_lengths": 3}, "xx.. xxx. ...."),
    ("query offset", (2, 4), {"mask": [CAUSAL], "query_offset": 0}, "x... xx.."),
    ("query offset beyond the keys", (2, 4), {"mask": [CAUSAL], "query_offset": 9}, "xxxx xxxx"),
    ("query offset before the keys", (3, 3), {"mask": [CAUSAL], "query_offset": -2}, "... ... x.."),
    ("key offset carries the queries", (2, 4), {"mask": [CAUSAL], "key_offset": 4}, "xxx. xxxx"),
    ("both offsets", (2, 4), {"mask": [CAUSAL], "key_offset": 2, "query_offset": 3}, "xx.. xxx."),
    ("offsets do not act without a mask", (2, 2), {"key_offset": 5, "query_offset": 0}, "xx xx"),
]


@pytest.mark.parametrize(("size", "options", "table"), [row[1:] for row in TABLES], ids=[row[0] for row in TABLES])
def test_predicate(size: tuple[int, int], options: dict[str, Any], table: str) -> None:
    assert drawn(*size, **options) == table.split()


def test_predicate_differs_by_sequence() -> None:
    lengths = {"mask": [CAUSAL], "kv_lengths": [2, 3]}
    assert drawn(2, 3, b=0, **lengths) == ["x..", "xx."]
    assert drawn(2, 3, b=1, **lengths) == ["xx.", "xxx"]
    offsets = {"mask": [CAUSAL], "key_offset": [0, 3], "query_offset": [2, 3]}
    assert drawn(2, 3, b=0, **offsets) == ["xxx", "xxx"]
    assert drawn(2, 3, b=1, **offsets) == ["x..", "xx."]
    documents = {"mask": [("documents", [[0, 1], [1, 1]], [[0, 0], [0, 1]])]}
    assert drawn(2, 2, b=0, **documents) == ["xx", ".."]
    assert drawn(2, 2, b=1, **documents) == [".x", ".x"]


def test_dense_differs_by_head() -> None:
    keep = np.array([[[True, False]], [[False, True]]])
    assert drawn(1, 2, h=0, mask=[("dense", keep)]) == ["x."]
    assert drawn(1, 2, h=1, mask=[("dense", keep)]) == [".x"]


def random_options(rng: np.random.Generator, rows: int, keys: int, batch: int, heads: int) -> dict[str, Any]:
    terms = [
        CAUSAL,
        ("window", rng.choice([None, 1, 2, 4]), rng.choice([None, 0, 1])),
        ("prefix", int(rng.integers(0, 4))),
        ("chunked", int(rng.integers(1, 4))),
        ("documents", rng.integers(0, 2, (batch, rows)), rng.integers(0, 2, keys)),
        ("dense", rng.random((batch, heads, 1, keys)) < 0.7),
    ]
    options: dict[str, Any] = {"mask": [term for term in terms if rng.random() < 0.3]}
    ranges = {
        "query_lengths": (0, rows + 1),
        "kv_lengths": (0, keys + 1),
        "query_offset": (-3, 9),
        "key_offset": (0, 5),
    }
    for name, limits in ranges.items():
        if rng.random() < 0.4:
            options[name] = rng.integers(*limits, batch if rng.random() < 0.5 else None)
    return options


def test_predicate_on_arrays_equals_predicate_on_integers() -> None:
    rng = np.random.default_rng(5)
    for _ in range(120):
        batch, heads, rows, keys = (int(n) for n in rng.integers(1, 6, 4))
        options = random_options(rng, rows, keys, batch, heads)
        key = np.zeros((batch, 1, keys, 1))
        problem = attention(np.zeros((batch, heads, rows, 1)), key, key, **options).problem
        for index in np.ndindex(batch, heads, rows, keys):
            assert bool(visible(problem, *index)) == problem.shown[index]


HAND: dict[str, tuple[dict[str, Any], Any]] = {
    # What each option adds to the score of key j in row i, written out anew; None hides the key.
    "plain": ({}, lambda b, h, i, j: 0),
    "scale": ({"scale": -0.3}, lambda b, h, i, j: 0),
    "softcap": ({"softcap": 0.7}, lambda b, h, i, j: 0),
    "causal": ({"mask": [CAUSAL]}, lambda b, h, i, j: 0 if j <= i + 2 else None),
    "window": ({"mask": [("window", 2, 0)]}, lambda b, h, i, j: 0 if j in (i + 1, i + 2) else None),
    "prefix": ({"mask": [("prefix", 4)]}, lambda b, h, i, j: 0 if j < 4 or i == 2 else None),
    "chunked": ({"mask": [("chunked", 3)]}, lambda b, h, i, j: 0 if (j < 3) == (i == 0) else None),
    "documents": (
        {"mask": [("documents", [0, 1, 2], [[0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])]},
        lambda b, h, i, j: 0 if i == ([0, 0, 1, 1, 1] if b == 0 else [1, 0, 0, 0, 0])[j] else None,
    ),
    "dense": (
        {"mask": [("dense", np.eye(T, S, dtype=bool))]},
        lambda b, h, i, j: 0 if i == j else None,
    ),
    "lengths": (
        {"mask": [CAUSAL], "kv_lengths": [4, 2], "query_lengths": [2, 3]},
        lambda b, h, i, j: 0 if (i < 2 and j <= i + 2 and j < 4 if b == 0 else j <= i - 1) else None,
    ),
    "offsets": (
        {"mask": [CAUSAL], "query_offset": 5, "key_offset": [2, 4]},
        lambda b, h, i, j: 0 if j + (2, 4)[b] <= 5 + i else None,
    ),
    "bias": (
        {"bias": [[0.0, 0.25, 0.5, 0.75, 1.0], [0.0, -0.5, -1.0, -1.5, -2.0], [0.0, -INF, -INF, -INF, -INF]]},
        lambda b, h, i, j: (0 if j == 0 else None) if i == 2 else j * (0.25, -0.5)[i],
    ),
    "alibi": ({"alibi": [0.5, 0.25, 0.125, 2.0]}, lambda b, h, i, j: -(0.5, 0.25, 0.125, 2.0)[h] * abs(i + 2 - j)),
    "alibi by sequence": (
        {"alibi": [[0.5] * H, [2.0] * H], "key_offset": 1, "query_offset": 0},
        lambda b, h, i, j: -(0.5, 2.0)[b] * abs(i - (j + 1)),
    ),
    "sinks": ({"sinks": [0.5, -INF, 2.0, -1.0]}, lambda b, h, i, j: 0),
    "everything": (
        {
            "mask": [CAUSAL, ("window", 3, 0)],
            "scale": 0.9,
            "softcap": 1.5,
            "bias": np.full((H, 1, 1), 0.25) * np.arange(H)[:, None, None],
            "alibi": 0.5 * np.ones(H),
            "sinks": [0.5, -INF, 2.0, -1.0],
            "kv_lengths": 4,
        },
        lambda b, h, i, j: 0.25 * h - 0.5 * (i + 1 - j) if i - 2 < j <= i + 1 else None,
    ),
}

MATRIX = pytest.mark.parametrize(
    "options",
    [
        *(options for options, _ in HAND.values()),
        {"scale": 0.0},
        {"mask": [("dense", np.random.default_rng(1).random((B, H, T, S)) < 0.5)]},
        {"bias": np.where(np.random.default_rng(2).random((B, 1, T, S)) < 0.4, -INF, 0.5), "softcap": 2.0},
        {"sinks": [0.0, -INF, 3.0, -3.0], "mask": [CAUSAL], "query_offset": -2},
    ],
    ids=[*HAND, "zero scale", "random dense", "hiding bias", "sinks and empty rows"],
)
FORMS = pytest.mark.parametrize("form", [attention, streaming_attention], ids=["whole", "streaming"])


@MATRIX
def test_both_forms_agree(options: dict[str, Any]) -> None:
    inputs = arrays(1, factor=8.0)
    one, two = attention(*inputs, **options), streaming_attention(*inputs, **options)
    np.testing.assert_allclose(one.output, two.output, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.lse, two.lse, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.weights, two.weights, rtol=0, atol=1e-12)


@MATRIX
def test_both_forms_agree_within_the_budget_on_large_scores(options: dict[str, Any]) -> None:
    inputs = arrays(2, factor=1e6)
    one, two = attention(*inputs, **options), streaming_attention(*inputs, **options)
    bound, finite = one.tolerance(FLOAT64, tiles=S), one.lse > -INF
    assert np.all(np.abs(one.output - two.output) <= bound.output)
    assert np.all(np.abs(one.lse[finite] - two.lse[finite]) <= bound.lse[finite])
    np.testing.assert_array_equal(two.lse > -INF, finite)


def exact_row(
    query: Any, key: Any, value: Any, extras: list[Any], sink: float, scale: Any, cap: Any
) -> tuple[Any, Any]:
    """Evaluate one row in mpmath; ``extras`` holds what is added to each score, or None at a hidden key."""
    weights = []
    for j, extra in enumerate(extras):
        if extra is None:
            weights.append(mpmath.mpf(0))
            continue
        score = scale * mpmath.fdot(zip(map(mpmath.mpf, query), map(mpmath.mpf, key[j]), strict=True))
        score = score if cap is None else cap * mpmath.tanh(score / cap)
        weights.append(mpmath.exp(score + extra))
    total = mpmath.fsum(weights) + mpmath.exp(mpmath.mpf(sink))
    columns = [mpmath.fdot(weights, map(mpmath.mpf, value[:, e])) for e in range(value.shape[1])]
    return [column / total if total else total for column in columns], mpmath.log(total) if total else -mpmath.inf


@FORMS
@pytest.mark.parametrize("name", HAND)
def test_agrees_with_fifty_digits(form: Any, name: str) -> None:
    options, extra = HAND[name]
    query, key, value = arrays(3)
    truth = form(query, key, value, **options)
    with mpmath.workdps(50):
        scale = mpmath.mpf(options.get("scale", 0)) or 1 / mpmath.sqrt(D)
        cap = mpmath.mpf(options["softcap"]) if "softcap" in options else None
        for b, h, i in np.ndindex(B, H, T):
            extras = [extra(b, h, i, j) for j in range(S)]
            sink = options.get("sinks", [-INF] * H)[h]
            output, lse = exact_row(query[b, h, i], key[b, h // 2], value[b, h // 2], extras, sink, scale, cap)
            assert truth.output[b, h, i] == pytest.approx([float(x) for x in output], abs=1e-14)
            assert truth.lse[b, h, i] == pytest.approx(float(lse), abs=1e-14)


EMPTY: dict[str, dict[str, Any]] = {
    "before every key": {"mask": [CAUSAL], "query_offset": -T},
    "dense": {"mask": [("dense", np.zeros((1, S), bool))]},
    "bias": {"bias": np.full((S,), -INF)},
    "no valid keys": {"kv_lengths": 0},
    "padding": {"query_lengths": 0},
    "window": {"mask": [("window", 1, 0)], "query_offset": 99},
}


@FORMS
@pytest.mark.parametrize("options", EMPTY.values(), ids=EMPTY.keys())
def test_empty_rows(form: Any, options: dict[str, Any]) -> None:
    for sinks in (None, [0.5, -INF, 2.0, -1.0]):
        truth = form(*arrays(), **options, sinks=sinks)
        assert not truth.output.any()
        assert not truth.weights.any()
        lse = np.array([-INF] * H if sinks is None else sinks)
        np.testing.assert_array_equal(truth.lse, np.broadcast_to(lse[:, np.newaxis], (B, H, T)))


@FORMS
@pytest.mark.parametrize("shape", [(0, 4, 2, 3, 5, 3, 2), (2, 4, 2, 0, 5, 3, 2), (2, 4, 2, 3, 0, 3, 2)])
def test_empty_axes(form: Any, shape: tuple[int, ...]) -> None:
    truth = form(*arrays(shape=shape), mask=[CAUSAL])
    batch, heads, _, rows, keys, _, value_dim = shape
    assert truth.output.shape == (batch, heads, rows, value_dim)
    assert truth.weights.shape == (batch, heads, rows, keys)
    np.testing.assert_array_equal(truth.lse, np.full((batch, heads, rows), -INF))
    assert truth.tolerance(FLOAT64).output.shape == truth.output.shape


POISONED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    # options, index of the dead rows of the query, index of the dead keys
    "beyond the key length": ({"kv_lengths": 3}, None, np.s_[:, :, 3:]),
    "padding rows": ({"query_lengths": 2}, np.s_[:, :, 2:], None),
    "hidden by a mask": ({"mask": [CAUSAL], "query_offset": 0}, None, np.s_[:, :, 3:]),
    "hidden by a dense mask": ({"mask": [("dense", np.arange(S) != 1)]}, None, np.s_[:, :, 1]),
    "hidden by a bias": ({"bias": np.where(np.arange(S) == 4, -INF, 0.1)}, None, np.s_[:, :, 4]),
}


@FORMS
@pytest.mark.parametrize("poison", [math.nan, INF, -INF, 1e308])
@pytest.mark.parametrize(("options", "rows", "keys"), POISONED.values(), ids=POISONED.keys())
def test_dead_data_changes_no_bit(form: Any, poison: float, options: dict[str, Any], rows: Any, keys: Any) -> None:
    clean, dirty = arrays(4), arrays(4)
    if rows is not None:
        dirty[0][rows] = poison
    if keys is not None:
        dirty[1][keys] = dirty[2][keys] = poison
    expected, got = form(*clean, **options), form(*dirty, **options)
    for name in ("output", "lse", "weights"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    np.testing.assert_array_equal(got.tolerance(FLOAT64).output, expected.tolerance(FLOAT64).output)
    np.testing.assert_array_equal(got.tolerance(FLOAT64).lse, expected.tolerance(FLOAT64).lse)


@FORMS
def test_bias_at_a_hidden_key_is_not_read(form: Any) -> None:
    bias = np.zeros((T, S))
    expected = form(*arrays(), mask=[CAUSAL], bias=bias)
    bias[0, 3:] = math.nan
    np.testing.assert_array_equal(form(*arrays(), mask=[CAUSAL], bias=bias).output, expected.output)


@FORMS
def test_very_negative_finite_bias_is_plain_arithmetic(form: Any) -> None:
    inputs = arrays()
    expected, got = form(*inputs), form(*inputs, bias=np.array(-1e9))
    np.testing.assert_allclose(got.output, expected.output, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got.lse, expected.lse - 1e9, rtol=0, atol=1e-6)


@FORMS
def test_query_heads_share_neighbouring_kv_heads(form: Any) -> None:
    value = np.arange(2.0).reshape(1, 2, 1, 1)
    truth = form(np.zeros((1, 6, 1, 1)), np.zeros((1, 2, 1, 1)), value)
    assert truth.output.ravel().tolist() == [0, 0, 0, 1, 1, 1]


@FORMS
def test_sinks(form: Any) -> None:
    inputs = arrays()
    plain = form(*inputs)
    big, small = form(*inputs, sinks=[80.0] * H), form(*inputs, sinks=[-1e4] * H)
    np.testing.assert_allclose(big.output, 0, atol=1e-30)
    np.testing.assert_allclose(big.lse, 80, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(small.output, plain.output)
    np.testing.assert_array_equal(small.lse, plain.lse)
    share = form(*inputs, sinks=plain.lse[0, :, 0])
    np.testing.assert_allclose(share.weights[0, :, 0].sum(axis=-1), 0.5)
    np.testing.assert_allclose(share.output[0, :, 0], plain.output[0, :, 0] / 2)


@FORMS
def test_order_of_scale_softcap_bias_and_softmax(form: Any) -> None:
    query, key, value = np.array([[[[2.0]]]]), np.array([[[[3.0], [0.0]]]]), np.array([[[[1.0], [0.0]]]])
    truth = form(query, key, value, scale=0.5, softcap=2.0, bias=np.array([10.0, 0.0]), alibi=[4.0])
    first, second = 2 * math.tanh(0.5 * 6 / 2) + 10 - 4, 0.0
    assert truth.lse.item() == pytest.approx(math.log(math.exp(first) + math.exp(second)), abs=1e-14)
    assert truth.output.item() == pytest.approx(1 / (1 + math.exp(second - first)), abs=1e-14)


@FORMS
def test_no_overflow(form: Any) -> None:
    inputs = arrays(factor=1e150)
    truth = form(*inputs)
    assert np.isfinite(truth.output).all()
    assert np.isfinite(truth.lse).all()
    np.testing.assert_allclose(truth.weights.sum(axis=-1), 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_narrow_types_are_taken_by_value(dtype: Any) -> None:
    narrow = [array.astype(dtype) for array in arrays()]
    bias, sinks = np.arange(S).astype(dtype), np.arange(H).astype(dtype)
    wide = [array.astype(np.float64) for array in narrow]
    expected = attention(*wide, bias=bias.astype(np.float64), sinks=sinks.astype(np.float64))
    np.testing.assert_array_equal(attention(*narrow, bias=bias, sinks=sinks).output, expected.output)


@FORMS
def test_weights_are_what_the_output_is_made_of(form: Any) -> None:
    query, key, value = arrays()
    truth = form(query, key, value, mask=[CAUSAL])
    np.testing.assert_allclose(truth.weights.sum(axis=-1), 1)
    np.testing.assert_allclose(truth.weights @ np.repeat(value, H // K, axis=1), truth.output, atol=1e-14)
    assert truth.weights[0, 0, 0].tolist()[3:] == [0, 0]


def test_truth_outlives_its_inputs() -> None:
    inputs, bias = arrays(), np.zeros(S)
    truth, bound = attention(*inputs, bias=bias), attention(*inputs, bias=bias).tolerance(FLOAT64)
    for array in (*inputs, bias):
        array[...] = math.nan
    np.testing.assert_array_equal(truth.tolerance(FLOAT64).output, bound.output)


def test_misuse_is_named() -> None:
    query, key, value = arrays()
    with pytest.raises(ShapeError, match="4-D"):
        attention(query[0], key[0], value[0])
    with pytest.raises(ShapeError, match="H % K == 0"):
        attention(query[:, :3], key, value)
    with pytest.raises(DTypeError, match="boolean"):
        attention(query, key, value, mask=[("dense", np.ones((T, S), np.int64))])
    with pytest.raises(ValueError, match="unknown term"):
        attention(query, key, value, mask=[("strided", 2)])
