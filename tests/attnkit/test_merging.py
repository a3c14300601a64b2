"""Merging partial results (A10): order and empty parts leave no trace, and any split of the keys is the whole."""

from __future__ import annotations

from itertools import permutations

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for

SHAPE = (2, 3, 5, 4)


def bits(result):
    return [array.tobytes() for array in result]


def parts_of(draw, count, dtype=np.float32, spread=3.0):
    """Parts as attention gives them: where a row is empty, output 0 and LSE -inf."""
    parts = []
    for number in range(count):
        output, lse = draw(*SHAPE, dtype=dtype), (spread * draw(*SHAPE[:3])).astype(np.float32)
        lse[number % 2, :, number % SHAPE[2]] = -np.inf
        parts.append((np.where(lse[..., None] == -np.inf, np.zeros_like(output), output), lse))
    return parts


EMPTY = (np.zeros(SHAPE, np.float32), np.full(SHAPE[:3], -np.inf, np.float32))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("spread", [0.1, 3.0, 300.0])
def test_the_order_leaves_no_trace(draw, count, spread) -> None:
    parts = parts_of(draw, count, spread=spread)
    results = {tuple(bits(ak.merge(*order))) for order in permutations(parts)}
    assert len(results) == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_the_order_leaves_no_trace_in_other_types(draw, dtype) -> None:
    parts = parts_of(draw, 4, dtype)
    results = {tuple(bits(ak.merge(*order))) for order in permutations(parts)}
    assert len(results) == 1
    assert ak.merge(*parts)[0].dtype == dtype


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("empties", [1, 3])
def test_an_empty_part_leaves_no_trace(draw, count, where, empties) -> None:
    parts = parts_of(draw, count)
    parts[0][0][0, 0, 1] = [-0.0, 0.0, 1e-45, -1e-45]  # signs of zero and subnormals are bits too
    merged = bits(ak.merge(*parts))
    parts[where:where] = [EMPTY] * empties
    assert bits(ak.merge(*parts)) == merged


def test_one_part_is_itself(draw) -> None:
    (part,) = parts_of(draw, 1)
    part[0][0, 0, 1] = [-0.0, 0.0, 1e-45, -1e-45]
    assert bits(ak.merge(part)) == bits(part)
    assert bits(ak.merge(part, EMPTY)) == bits(part)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_empty_parts_merge_to_empty(count) -> None:
    assert bits(ak.merge(*[EMPTY] * count)) == bits(EMPTY)


def test_what_an_empty_part_holds_does_not_matter(draw) -> None:
    part, other = parts_of(draw, 2)
    dirt = (np.full(SHAPE, np.nan, np.float32), EMPTY[1])
    more = (np.full(SHAPE, np.inf, np.float32), EMPTY[1])
    assert bits(ak.merge(part, dirt, other, more)) == bits(ak.merge(part, other))


def test_a_formula_in_float64(draw) -> None:
    parts = parts_of(draw, 3)
    output, lse = ak.merge(*parts)
    outputs, lses = (np.stack([part[index] for part in parts]).astype(np.float64) for index in (0, 1))
    with np.errstate(divide="ignore"):
        truth = np.log(np.exp(lses).sum(axis=0))
    weights = np.exp(lses - np.where(np.isfinite(truth), truth, 0))[..., None]
    np.testing.assert_allclose(output, (weights * outputs).sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(lse, truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", [0.1, 3.0, 300.0])
def test_any_grouping_agrees(draw, spread) -> None:
    a, b, c, d = parts_of(draw, 4, np.float64, spread)
    together = ak.merge(a, b, c, d)
    for grouped in (
        ak.merge(ak.merge(a, b), ak.merge(c, d)),
        ak.merge(a, ak.merge(b, ak.merge(c, d))),
        ak.merge(ak.merge(a, b, c), d),
    ):
        np.testing.assert_allclose(grouped[0], together[0], atol=3e-4 if spread > 100 else 1e-6)
        np.testing.assert_allclose(grouped[1], together[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shift", [1e4, -1e4, 3e38, -3e38])
def test_huge_normalisers_do_not_overflow(draw, shift) -> None:
    parts = [(output, np.where(lse == -np.inf, lse, np.float32(shift))) for output, lse in parts_of(draw, 3)]
    output, lse = ak.merge(*parts)
    shown = np.stack([part[1] for part in parts]) > -np.inf
    mean = np.stack([part[0] for part in parts]).sum(axis=0) / shown.sum(axis=0)[..., None]
    np.testing.assert_allclose(output, mean, atol=1e-6)
    np.testing.assert_allclose(lse, np.float32(shift) + np.log(shown.sum(axis=0), dtype=np.float32))


def test_a_part_that_weighs_nothing_changes_nothing_but_is_there(draw) -> None:
    (heavy,) = parts_of(draw, 1)
    light = (np.full(SHAPE, 3e38, np.float32), np.full(SHAPE[:3], -1e4, np.float32))
    output, lse = ak.merge(heavy, light)
    full = heavy[1] > -np.inf
    assert output[full].tobytes() == heavy[0][full].tobytes()
    assert (output[~full] == np.float32(3e38)).all()
    assert (lse[~full] == -1e4).all()


@pytest.mark.parametrize("shape", [(3, 4), (2, 0, 4), (0, 3, 5, 4), (2, 3, 5, 0)])
def test_any_rank_and_empty_axes(draw, shape) -> None:
    output, lse = ak.merge(*[(draw(*shape), np.ones(shape[:-1]))] * 2)
    assert output.shape == shape
    assert lse.shape == shape[:-1]


def test_arguments_are_left_alone(draw) -> None:
    parts = parts_of(draw, 3)
    before = [bits(part) for part in parts]
    for array in (array for part in parts for array in part):
        array.flags.writeable = False
    output, lse = ak.merge(*parts)
    assert [bits(part) for part in parts] == before
    results = (output, lse, *ak.merge(parts[0]))
    assert not any(np.shares_memory(mine, theirs) for mine in results for part in parts for theirs in part)


OTHER = (np.zeros((2, 3, 5, 6), np.float32), np.zeros((2, 3, 5), np.float32))
PART = (np.zeros(SHAPE, np.float32), np.zeros(SHAPE[:3], np.float32))


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ((), ak.ShapeError, "at least one"),
        ((PART, OTHER), ak.ShapeError, r"part 1 must be output \[..., T, E\] = \[2, 3, 5, 4\]"),
        (((PART[0], PART[1][..., None]),), ak.ShapeError, r"part 0 .*lse \[..., T\] = \[2, 3, 5\]"),
        ((PART, (PART[0], PART[1][:1])), ak.ShapeError, "part 1"),
        ((PART, (PART[0].astype(np.float64), PART[1])), ak.DTypeError, "part 1 must be float32 .*got float64"),
        ((PART, (PART[0], PART[1].astype(np.float64))), ak.DTypeError, "part 1 .*with lse float32, got .*float64"),
        (((PART[0], PART[1].astype(np.float16)),), ak.DTypeError, "lse must be float32 or float64, got float16"),
        ((PART, 5), ak.DTypeError, "part 1 must be a pair"),
        (((np.zeros(4), np.array(0.0)),), ak.ShapeError, r"part 0 must be output \[..., T, E\]"),
        (((PART[0].astype(int), PART[1]),), ak.DTypeError, "output must be one of .*got int64"),
        ((PART, (np.ma.array(PART[0]), PART[1])), ak.DTypeError, "part 1 must be a plain array"),
        ((PART[0],), ak.DTypeError, "part 0 must be a pair"),
        ((PART, (PART[0], None)), ak.DTypeError, "part 1 must be an? .*array"),
        ((PART, (*PART, PART[1])), ak.DTypeError, "part 1 must be a pair"),
    ],
)
def test_what_does_not_fit_is_named(parts, error, words) -> None:
    with pytest.raises(error, match=words):
        ak.merge(*parts)


# Any split of the keys, each piece at its own offset, is the whole


@pytest.fixture(params=["numpy:dense", "numpy:tiled"])
def path(request):
    return request.param


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": ak.Mask.causal()},
        {"mask": ak.Mask.causal() & ak.Mask.window(3)},
        {"mask": ak.Mask.chunked(4), "softcap": 2.0},
        {"mask": ak.Mask.prefix(2), "alibi": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)},
        {"mask": ak.Mask.causal(), "sinks": np.array([0.3, -1.0, 2.0, -np.inf], np.float32)},
    ],
    ids=str,
)
@pytest.mark.parametrize("cuts", [(7,), (1, 10), (0, 4, 4, 11), (3, 6, 9), (0, 11)])
def test_any_split_is_the_whole(draw, path, options, cuts) -> None:
    query, key, value = draw(2, 4, 6, 8), draw(2, 2, 11, 8), draw(2, 2, 11, 5)
    query, key, value = (array.astype(np.float32) for array in (query, key, value))
    options = {"query_offset": 5, "key_offset": 0, **options}
    truth = reference.attention(query, key, value, **options)
    sinks, parts = options.pop("sinks", None), []
    for start, stop in zip((0, *cuts), (*cuts, 11), strict=True):
        options["key_offset"] = start
        piece = (query, key[:, :, start:stop], value[:, :, start:stop])
        parts.append(ak.attention_with_lse(*piece, **options, sinks=sinks if not parts else None, backend=path))
    merged = ak.merge(*parts)
    tolerance = truth.tolerance(numerics_for("strict-fp32", "float32"), tiles=len(parts) + 1)
    assert (np.abs(merged[0] - truth.output) <= tolerance.output).all()
    with np.errstate(invalid="ignore"):
        assert ((merged[1] == truth.lse) | (np.abs(merged[1] - truth.lse) <= tolerance.lse)).all()
    assert bits(ak.merge(*reversed(parts))) == bits(merged)
