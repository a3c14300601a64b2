"""Wrong masks: made, joined, read from data, and given to a call that they do not fit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import attnkit as ak

Mask = ak.Mask
SHAPE, TYPE = ak.ShapeError, ak.DTypeError
FOUR = "[B, H, T, S] = [2, 4, 3, 5]"
RAGGED = [[1], [1, 2]]


def loads(*terms):
    """Read mask data."""
    return lambda w: Mask.from_dict({"terms": list(terms)})


MADE = [
    ("window 0", lambda w: Mask.window(0), SHAPE, "left must be >= 1 or None for unlimited, got 0"),
    ("window -1", lambda w: Mask.window(-1), SHAPE, "left must be >= 1 or None for unlimited, got -1"),
    ("window 2.5", lambda w: Mask.window(2.5), SHAPE, "left must be an integer or None, got 2.5"),
    ("window True", lambda w: Mask.window(True), SHAPE, "left must be an integer or None, got True"),
    ("window text", lambda w: Mask.window("4"), SHAPE, "left must be an integer or None, got '4'"),
    ("window right -1", lambda w: Mask.window(2, -1), SHAPE, "right must be >= 0 or None for unlimited, got -1"),
    ("window far right", lambda w: Mask.window(1, 2**63 - 1), SHAPE, "right must be <= 2**53", str(2**63 - 1)),
    ("prefix -1", lambda w: Mask.prefix(-1), SHAPE, "n must be >= 0, got -1"),
    ("prefix None", lambda w: Mask.prefix(None), SHAPE, "n must be an integer, got None"),
    ("prefix beyond 64 bits", lambda w: Mask.prefix(10**30), SHAPE, "n must be <= 2**53", str(10**30)),
    ("chunked 0", lambda w: Mask.chunked(0), SHAPE, "n must be >= 1, got 0"),
    ("chunked 1.0", lambda w: Mask.chunked(1.0), SHAPE, "n must be an integer, got 1.0"),
    ("dense integers", lambda w: Mask.dense(np.ones((3, 5), int)), TYPE, "dense needs booleans", "int64", "array != 0"),
    ("dense floats", lambda w: Mask.dense(np.zeros((3, 5))), TYPE, "dense needs booleans", "float64", "bias="),
    ("dense None", lambda w: Mask.dense(None), TYPE, "dense needs booleans", "object"),
    ("dense five axes", lambda w: Mask.dense(np.ones((1, 1, 1, 3, 5), bool)), SHAPE, "[B, H, T, S]", "(1, 1, 1, 3, 5)"),
    ("dense ragged", lambda w: Mask.dense([[True], [True, False]]), SHAPE, "dense must be an array or nested lists"),
    ("dense masked", lambda w: Mask.dense(np.ma.array(np.ones((3, 5), bool))), TYPE, "dense must be", "masked array"),
    ("ids three axes", lambda w: Mask.documents(np.zeros((1, 1, 3), int), [0]), SHAPE, "ids_q", "(1, 1, 3)"),
    ("ids one number", lambda w: Mask.documents([0], 4), SHAPE, "ids_k must be [length]", "shape ()"),
    ("ids floats", lambda w: Mask.documents([0.0, 1.0], [0]), TYPE, "ids_q must hold integers, got float64"),
    ("ids booleans", lambda w: Mask.documents([0], [True]), TYPE, "ids_k must hold integers, got bool"),
    ("ids text", lambda w: Mask.documents(["a"], ["a"]), TYPE, "ids_q must hold integers, got <U1"),
    ("ids ragged", lambda w: Mask.documents(RAGGED, [1]), SHAPE, "ids_q must be an array or nested lists"),
    ("ids masked", lambda w: Mask.documents([1], np.ma.array([1])), TYPE, "ids_k must be a plain array"),
    ("causal & prefix", lambda w: Mask.causal() & Mask.prefix(2), SHAPE, "prefix(n) already contains causal"),
    ("& an array", lambda w: Mask.causal() & np.ones((3, 5), bool), TYPE, "& joins Masks, got ndarray", "Mask.dense"),
    ("an array &", lambda w: np.ones((3, 5), bool) & Mask.causal(), TYPE, "& joins Masks, got ndarray", "Mask.dense"),
    ("& None", lambda w: Mask.causal() & None, TYPE, "& joins Masks, got NoneType"),
    ("as_array -1", lambda w: Mask.causal().as_array(-1, 3), SHAPE, "query_length must be >= 0, got -1"),
    ("as_array 2.5", lambda w: Mask.causal().as_array(2, 2.5), SHAPE, "key_length must be an integer, got 2.5"),
    ("as_array offset", lambda w: Mask.causal().as_array(2, 3, query_offset=0.5), TYPE, "query_offset", "0.5"),
    ("as_array dense", lambda w: Mask.dense(np.ones((3, 5), bool)).as_array(1, 5), SHAPE, "[T, S] = [1, 5]", "[3, 5]"),
    ("as_array ids", lambda w: Mask.documents([0, 0], [0]).as_array(2, 3), SHAPE, "[T, S] = [2, 3]", "int64[1]"),
]  # fmt: skip

READ = [
    ("no data", lambda w: Mask.from_dict(None), SHAPE, "mask data must be {'terms': [", "got None"),
    ("no terms", lambda w: Mask.from_dict({}), SHAPE, "mask data must be {'terms': [", "got {}"),
    ("terms are text", lambda w: Mask.from_dict({"terms": "causal"}), SHAPE, "mask data must be", "'causal'"),
    ("a term is text", loads("causal"), SHAPE, "mask data must be", "['causal']"),
    ("unknown kind", loads({"kind": "banded"}), SHAPE, "kind must be one of causal, window, prefix", "'banded'"),
    ("unknown field", loads({"kind": "causal", "n": 3}), SHAPE, "the data of causal does not fit", "'n'"),
    ("missing field", loads({"kind": "prefix"}), SHAPE, "the data of prefix does not fit", "'n'"),
    ("bad size", loads({"kind": "window", "left": 0, "right": 0}), SHAPE, "left must be >= 1", "got 0"),
    ("float ids", loads({"kind": "documents", "ids_q": [0.5], "ids_k": [1]}), TYPE, "ids_q must hold integers"),
    ("bits cut", loads({"kind": "dense", "shape": [3, 5], "bits": "/w=="}), SHAPE, "needs 15 bits, got 1 bytes"),
    ("bits garbled", loads({"kind": "dense", "shape": [3, 5], "bits": "!!"}), SHAPE, "a dense term", "base64"),
    ("bits are a number", loads({"kind": "dense", "shape": [1, 8], "bits": 3}), SHAPE, "a dense term", "int"),
    ("shape negative", loads({"kind": "dense", "shape": [-1, -8], "bits": "/w=="}), SHAPE, "a dense term", "[-1, -8]"),
    ("shape is text", loads({"kind": "dense", "shape": "ab", "bits": "/w=="}), SHAPE, "a dense term", "'ab'"),
    ("shape missing", loads({"kind": "dense", "bits": "/w=="}), SHAPE, "a dense term needs a shape", "'shape'"),
    ("dense field", loads({"kind": "dense", "shape": [1, 8], "bits": "/w==", "n": 1}), SHAPE, "a dense term", "'n': 1"),
    ("contradiction", loads({"kind": "causal"}, {"kind": "prefix", "n": 1}), SHAPE, "already contains causal"),
]  # fmt: skip

GIVEN = [
    ("an array", np.ones((3, 5), bool), TYPE, "mask must be a Mask or None, got ndarray", "Mask.dense"),
    ("text", "causal", TYPE, "mask must be a Mask or None, got str"),
    ("a constructor", Mask.causal, TYPE, "mask must be a Mask or None, got function"),
    ("a flag", True, TYPE, "mask must be a Mask or None, got bool"),
    ("dense too narrow", Mask.dense(np.ones((3, 4), bool)), SHAPE, "mask.dense must broadcast to", FOUR, "got [3, 4]"),
    ("dense batch", Mask.dense(np.ones((3, 1, 1, 5), bool)), SHAPE, "mask.dense", FOUR, "got [3, 1, 1, 5]"),
    ("dense head", Mask.dense(np.ones((2, 3, 5), bool)), SHAPE, "mask.dense", FOUR, "got [2, 3, 5]"),
    ("ids_q", Mask.documents([0, 0], [0] * 5), SHAPE, "ids_q must be [T] = [3] or [B, T] = [2, 3], got [2]"),
    ("ids_k", Mask.documents([0] * 3, [0] * 4), SHAPE, "ids_k must be [S] = [5] or [B, S] = [2, 5], got [4]"),
    ("ids batch", Mask.documents(np.zeros((3, 3), int), [0] * 5), SHAPE, "ids_q must be", "[2, 3], got [3, 3]"),
]


@pytest.mark.parametrize("row", [*MADE, *READ], ids=lambda row: row[0])
def test_masks_and_their_data(world, row) -> None:
    world.refuses(*row)


@pytest.mark.parametrize(("name", "mask", "error", "parts"), [(*row[:3], row[3:]) for row in GIVEN])
def test_masks_of_a_call(world, name, mask, error, parts) -> None:
    world.refuses(name, lambda w: w.attend(mask=mask), error, *parts)
    world.refuses(name, lambda w: w.cache[0].attend(w.query, mask=mask), error, *parts)


def test_arrays_of_another_library(world) -> None:
    dense = Mask.dense(world.foreign(3, 5, dtype="bool"))
    world.refuses(
        "", lambda w: w.attend(mask=dense), TYPE, "mask.dense must come from the query's array library", "Foreign"
    )
    ids = Mask.documents(world.foreign(3, dtype="int64"), [0] * 5)
    world.refuses("", lambda w: w.attend(mask=ids), TYPE, "mask.documents: ids_q must come from", "Foreign")


def test_data_of_a_mask_cut_anywhere(world) -> None:
    """Whatever part of the bits is lost, the mask is refused and not half read."""
    data = Mask.dense(np.random.default_rng(0).random((9, 9)) < 0.5).to_dict()
    bits = data["terms"][0]["bits"]
    for stop, _ in pairwise(range(len(bits) + 1)):
        term = {**data["terms"][0], "bits": bits[:stop]}
        world.refuses("", loads(term), SHAPE, "a dense term needs a shape and that many packed bits")
