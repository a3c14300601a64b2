"""Masks: what each kind means as a literal matrix, how they join, and how they travel (contract A3-A5).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak

CAUSAL = ak.Mask.causal()


def drawn(mask: ak.Mask, rows: int, keys: int, **offsets: Any) -> str:
    """Draw the mask, ``x`` where a row sees a key, rows apart by a space."""
    return " ".join("".join("x" if seen else "." for seen in row) for row in mask.as_array(rows, keys, **offsets))


TABLES: dict[str, tuple[ak.Mask, tuple[int, int], dict[str, int], str]] = {
    "causal": (CAUSAL, (3, 3), {}, "x.. xx. xxx"),
    "causal, fewer rows": (CAUSAL, (2, 4), {}, "xxx. xxxx"),
    "causal, more rows": (CAUSAL, (4, 2), {}, ".. .. x. xx"),
    "causal, one row": (CAUSAL, (1, 4), {}, "xxxx"),
    "causal, query offset": (CAUSAL, (2, 4), {"query_offset": 0}, "x... xx.."),
    "causal, before every key": (CAUSAL, (2, 3), {"query_offset": -1}, "... x.."),
    "causal, both offsets": (CAUSAL, (2, 3), {"query_offset": 5, "key_offset": 4}, "xx. xxx"),
    "causal, key offset alone": (CAUSAL, (2, 3), {"key_offset": 7}, "xx. xxx"),
    "window of one": (ak.Mask.window(1), (3, 3), {}, "x.. .x. ..x"),
    "window of two": (ak.Mask.window(2), (4, 4), {}, "x... xx.. .xx. ..xx"),
    "window, one ahead": (ak.Mask.window(2, 1), (4, 4), {}, "xx.. xxx. .xxx ..xx"),
    "window, unlimited left": (ak.Mask.window(None), (3, 3), {}, "x.. xx. xxx"),
    "window, unlimited right": (ak.Mask.window(2, None), (4, 4), {}, "xxxx xxxx .xxx ..xx"),
    "window, unlimited": (ak.Mask.window(None, None), (2, 3), {}, "xxx xxx"),
    "prefix": (ak.Mask.prefix(2), (4, 4), {}, "xx.. xx.. xxx. xxxx"),
    "prefix of none": (ak.Mask.prefix(0), (3, 3), {}, "x.. xx. xxx"),
    "prefix counts positions": (ak.Mask.prefix(4), (2, 3), {"query_offset": 1, "key_offset": 2}, "xx. xx."),
    "chunked": (ak.Mask.chunked(2), (4, 4), {}, "xx.. xx.. ..xx ..xx"),
    "chunked counts positions": (ak.Mask.chunked(2), (3, 3), {"query_offset": 1, "key_offset": 1}, "x.. .xx .xx"),
    "chunked below 0": (ak.Mask.chunked(2), (3, 3), {"query_offset": -1, "key_offset": -1}, "x.. .xx .xx"),
    "documents": (ak.Mask.documents([0, 0, 1], [0, 1, 1, 0]), (3, 4), {}, "x..x x..x .xx."),
    "dense": (ak.Mask.dense([[True, False], [False, True]]), (2, 2), {}, "x. .x"),
    "dense, broadcast": (ak.Mask.dense([[True, False, True]]), (2, 3), {}, "x.x x.x"),
}


@pytest.mark.parametrize(("mask", "size", "offsets", "table"), TABLES.values(), ids=TABLES.keys())
def test_tables(mask: ak.Mask, size: tuple[int, int], offsets: dict[str, int], table: str) -> None:
    assert drawn(mask, *size, **offsets) == table


def test_offsets_and_ids_of_each_sequence() -> None:
    shown = CAUSAL.as_array(2, 3, query_offset=np.array([1, 0]))
    assert shown.shape == (2, 1, 2, 3)
    np.testing.assert_array_equal(shown[0, 0], CAUSAL.as_array(2, 3))
    np.testing.assert_array_equal(shown[1, 0], CAUSAL.as_array(2, 3, query_offset=0))
    shown = ak.Mask.documents([[0, 1], [1, 1]], [1, 0, 1]).as_array(2, 3)
    assert shown.shape == (2, 1, 2, 3)
    assert shown[:, 0].tolist() == [[[False, True, False], [True, False, True]], [[True, False, True]] * 2]


def test_dense_keeps_its_heads() -> None:
    array = np.random.default_rng(0).random((2, 3, 4, 5)) < 0.5
    np.testing.assert_array_equal(ak.Mask.dense(array).as_array(4, 5), array)


def one_of_each() -> list[ak.Mask]:
    rng = np.random.default_rng(1)
    ids_q, ids_k = rng.integers(0, 3, 6), rng.integers(0, 3, (2, 8))
    return [
        CAUSAL,
        ak.Mask.window(3, 1),
        ak.Mask.window(None, 2),
        ak.Mask.window(5, None),
        ak.Mask.prefix(3),
        ak.Mask.prefix(1),
        ak.Mask.chunked(3),
        ak.Mask.chunked(2),
        ak.Mask.documents(ids_q, ids_k),
        ak.Mask.dense(rng.random((2, 1, 6, 8)) < 0.6),
        ak.Mask.dense(rng.random((1, 8)) < 0.6),
    ]


def joinable(*masks: ak.Mask) -> bool:
    kinds = {term[0] for mask in masks for term in mask.terms}
    return not {"causal", "prefix"} <= kinds


PAIRS = [pair for pair in itertools.product(one_of_each(), repeat=2) if joinable(*pair)]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=str)
def test_joining_is_and_on_visibility(one: ak.Mask, other: ak.Mask) -> None:
    both = one & other
    expected = one.as_array(6, 8) & other.as_array(6, 8)
    np.testing.assert_array_equal(*np.broadcast_arrays(both.as_array(6, 8), expected))
    assert hash(both) == hash(other & one)
    if not (one.dense_arrays and other.dense_arrays):  # arrays of one kind stay in the order given
        assert both == other & one
    assert both & one == both


def test_joining_is_associative() -> None:
    for triple in itertools.combinations(one_of_each(), 3):
        if joinable(*triple):
            one, two, three = triple
            assert (one & two) & three == one & (two & three)


def test_windows_prefixes_and_repetitions_merge() -> None:
    assert (ak.Mask.window(4, 2) & ak.Mask.window(7, 1)).terms == (("window", 4, 1),)
    assert (ak.Mask.window(None, 2) & ak.Mask.window(7, None)).terms == (("window", 7, 2),)
    assert (ak.Mask.prefix(4) & ak.Mask.prefix(2)).terms == (("prefix", 2),)
    assert (CAUSAL & CAUSAL).terms == (("causal",),)
    array = np.ones((2, 2), bool)
    assert len((ak.Mask.dense(array) & ak.Mask.dense(array.copy())).terms) == 1
    assert len((ak.Mask.chunked(2) & ak.Mask.chunked(3)).terms) == 2


def test_causal_and_prefix_do_not_join() -> None:
    for one, other in itertools.permutations([CAUSAL, ak.Mask.prefix(2)]):
        with pytest.raises(ak.ShapeError, match="already contains causal"):
            _ = one & other


@pytest.mark.parametrize("value", [None, True, "causal", np.ones((2, 2), bool)])
def test_masks_join_only_masks(value: object) -> None:
    with pytest.raises(TypeError):
        CAUSAL & value  # type: ignore[operator]  # the operator itself is what raises


def test_structure_tells_masks_apart_but_not_their_arrays() -> None:
    masks = one_of_each()[:-1]
    assert len({mask.structure for mask in masks}) == len(masks)
    one, other = ak.Mask.dense([[True, False]]), ak.Mask.dense([[True, True]])
    assert one.structure == other.structure
    assert one != other


def test_equal_masks_are_equal() -> None:
    for one, other in zip(one_of_each(), one_of_each(), strict=True):
        assert one == other
        assert hash(one) == hash(other)
    assert ak.Mask.window(None) != CAUSAL
    assert CAUSAL != "causal"


@pytest.mark.parametrize("mask", [*one_of_each(), CAUSAL & ak.Mask.window(4) & ak.Mask.chunked(2)], ids=str)
def test_serialisation_round_trip(mask: ak.Mask) -> None:
    assert ak.Mask.from_dict(json.loads(json.dumps(mask.to_dict()))) == mask


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"terms": []},
        {"terms": [{"kind": "causal"}], "more": 1},
        {"terms": [{"kind": "sideways"}]},
        {"terms": [{}]},
        {"terms": [{"kind": "causal", "n": 3}]},
        {"terms": [{"kind": "window"}]},
        {"terms": [{"kind": "window", "left": 0}]},
        {"terms": [{"kind": "prefix", "n": -1}]},
        {"terms": [{"kind": "dense", "shape": [2, 2]}]},
        {"terms": [{"kind": "dense", "shape": [4, 4], "bits": "AA=="}]},
        {"terms": [{"kind": "dense", "shape": [2, 2], "bits": "?"}]},
    ],
    ids=str,
)
def test_damaged_data_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ak.ShapeError):
        ak.Mask.from_dict(data)


SIZES: dict[str, Any] = {
    "left must be >= 1": lambda: ak.Mask.window(0),
    "right must be >= 0": lambda: ak.Mask.window(2, -1),
    "left must be an integer or None": lambda: ak.Mask.window(2.0),  # type: ignore[arg-type]
    "right must be an integer or None": lambda: ak.Mask.window(2, True),
    "n must be >= 0": lambda: ak.Mask.prefix(-1),
    "n must be >= 1": lambda: ak.Mask.chunked(0),
    "n must be an integer, got None": lambda: ak.Mask.chunked(None),  # type: ignore[arg-type]
    r"ids_q must be \[length\]": lambda: ak.Mask.documents(3, [1]),
    "from 2 to 4 axes": lambda: ak.Mask.dense([True]),
}


@pytest.mark.parametrize(("message", "build"), SIZES.items(), ids=SIZES.keys())
def test_sizes_that_do_not_fit(message: str, build: Any) -> None:
    with pytest.raises(ak.ShapeError, match=message):
        build()


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, ml_dtypes.bfloat16])
def test_dense_takes_booleans_only(dtype: Any) -> None:
    with pytest.raises(ak.DTypeError, match="dense needs booleans"):
        ak.Mask.dense(np.ones((2, 2), dtype))


@pytest.mark.parametrize("ids", [[0.5, 1.0], [True, False], ["a", "b"]])
def test_ids_are_integers(ids: Any) -> None:
    with pytest.raises(ak.DTypeError, match="ids_k must hold integers"):
        ak.Mask.documents([0, 1], ids)


def test_integers_of_numpy_are_integers() -> None:
    assert ak.Mask.window(np.int32(3), np.uint8(1)) == ak.Mask.window(3, 1)
    assert ak.Mask.chunked(np.int64(4)) == ak.Mask.chunked(4)


def test_a_mask_keeps_copies() -> None:
    array, ids = np.ones((2, 2), bool), np.zeros(2, np.int64)
    masks = [ak.Mask.dense(array), ak.Mask.documents(ids, ids)]
    array[:], ids[:] = False, [0, 1]
    assert all(mask.as_array(2, 2).all() for mask in masks)
    with pytest.raises(ValueError, match="read-only"):
        masks[0].dense_arrays[0][0, 0] = False


def test_a_neutral_mask_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    query, key, value = (rng.standard_normal((1, 2, 5, 4)).astype(np.float32) for _ in range(3))
    expected = ak.attention(query, key, value, backend="numpy")
    neutral = ak.Mask.window(None, None) & ak.Mask.chunked(99) & ak.Mask.dense(np.ones((1, 1), bool))
    np.testing.assert_allclose(ak.attention(query, key, value, mask=neutral, backend="numpy"), expected, rtol=1e-6)


def test_masks_show_themselves() -> None:
    mask = CAUSAL & ak.Mask.window(4) & ak.Mask.dense(np.ones((2, 2), bool))
    assert repr(mask) == "causal() & window(4, 0) & dense(bool[2, 2])"


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ((("bogus",),), "bogus"),
        ((("causal", 3),), "a term is a tuple of one of causal"),
        ((("window", -5, 0),), "left must be >= 1"),
        ([("causal",)], "terms must be a tuple"),
        ((), "at least one term"),
        (None, "None"),
        ((("causal",), ("prefix", 2)), "already contains causal"),
    ],
)
def test_terms_given_by_hand_are_checked_too(terms: Any, message: str) -> None:
    with pytest.raises(ak.ShapeError, match=message):
        ak.Mask(terms)
