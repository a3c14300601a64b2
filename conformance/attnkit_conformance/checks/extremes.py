"""Numbers and sizes at the ends: large products, low biases, far positions, wide windows, large heads (A3-A6, A12).

Axes: ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head size.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnkit_conformance.cases import Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_equal, assert_within
from attnkit_conformance.structures import CAUSALLY, causal, window
from attnkit_conformance.subject import Subject

_FAR = 2**24 + 1  # float32 counts up to one less
_LOWEST = float(np.finfo(np.float32).min)
_SLOPES = np.array([1.0, 0.25], np.float32)


def _rows(*rows: list[float]) -> Array:
    return np.array(rows, np.float32)


LARGE_PRODUCTS = each_dtype([Case(label="products", queries=3, keys=40, head_dim=size) for size in (16, 64, 192)])
LOW_BIASES = [
    Case(label=f"low-bias{low:.0e}", queries=4, keys=3, options={"bias": bias})
    for low in (-1e30, _LOWEST)
    for bias in (_rows([low] * 3, [low, low, -np.inf], [-np.inf, low, -np.inf], [low, 0, low]),)
]
NAN_BIAS = Case(label="nan-bias", options={"bias": np.where(np.eye(6, k=-2) > 0, np.nan, 0).astype(np.float32)})
FAR = [
    Case(label=f"far-{label}", queries=9, keys=13, options={"query_offset": _FAR + 4, "key_offset": _FAR, **options})
    for label, options in (
        ("causal", CAUSALLY),
        ("window", {"mask": window(3, 1)}),
        ("alibi", {"alibi": _SLOPES, **CAUSALLY}),
    )
]
COUNTED = [
    Case(
        label=f"counted-{label}",
        batch=1,
        queries=5,
        keys=keys,
        dtype=dtype,
        pinned=("dtype",),
        draw="ascending",
        options=options,
    )
    for label, options in (("causal", CAUSALLY), ("alibi", {"alibi": _SLOPES, **CAUSALLY}))
    for dtype, keys in (("bfloat16", 300), ("float16", 2100))
]
WIDE = [
    Case(label=f"wide{left}", queries=queries, keys=keys, options={"mask": window(left)})
    for left in (16, 2**31, 2**40)
    for queries, keys in ((4, 4), (3, 9), (9, 4))
]
LARGE_HEADS = [
    Case(
        label=f"head-{label}",
        heads=heads,
        queries=queries,
        keys=40,
        head_dim=size,
        pinned=("head_dim",),
        options=options,
    )
    for size in (256, 512)
    for label, heads, queries, options in (
        ("plain", 2, 3, {}),
        ("causal", 2, 40, CAUSALLY),
        ("decode", 2, 1, {}),
        ("grouped", 4, 3, {}),
        ("lengths", 2, 3, {"kv_lengths": np.array([17, 33])}),
        ("window", 2, 9, {"mask": window(6)}),
    )
]


class TestExtremes(Checks):
    """What is plain arithmetic in the accumulation type must not fail because it is far out."""

    @over(LARGE_PRODUCTS)
    def test_products_beyond_float16(self, backend: Subject, case: Case) -> None:
        """A12: products far beyond 65504 in every element type, all of them alike."""
        query, key, value = (plain(array).copy() for array in case.arrays)
        value[...] = 1 + np.arange(case.keys)[:, None] % 2
        large = case.holding((np.full_like(query, 120), np.full_like(key, 120), value))
        mean = np.full(case.output_shape, 1.5)
        assert_within(large.call(backend).output, mean, backend.slack(case) * mean, what="mean of the values")

    @over(LOW_BIASES)
    def test_low_biases_are_arithmetic(self, backend: Subject, case: Case) -> None:
        """A6: a finite bias hides nothing by itself, were it the lowest number there is."""
        query, key, value = (plain(array).copy() for array in case.arrays)
        value[...] = 1 + np.arange(case.keys)[:, None]
        level = case.holding((0 * query, key, value))
        means = np.array([2, 1.5, 2, 2])[:, None]  # of all three keys, the first two, the second, the second
        expected = np.broadcast_to(means, case.output_shape)
        bound = backend.slack(case) * expected
        assert_within(level.call(backend).output, expected, bound, what="mean of the keys of the highest bias")

    @over([NAN_BIAS])
    def test_nan_in_a_bias_is_seen(self, backend: Subject, case: Case) -> None:
        """A6: NaN at a visible key makes its row NaN, and no other."""
        output = plain(case.call(backend).output)
        odd = np.isnan(case.options["bias"]).any(axis=1)
        assert_equal(np.isnan(output), np.broadcast_to(odd[:, None], output.shape), what="rows that are NaN")
        calm = replace(case, options={"bias": np.nan_to_num(case.options["bias"])}).holding(case.arrays)
        bound = backend.tolerance(calm).output[:, :, ~odd]
        assert_within(output[:, :, ~odd], calm.truth.output[:, :, ~odd], bound, what="output of the other rows")

    @over([*FAR, *COUNTED])
    def test_positions_are_integers(self, backend: Subject, case: Case) -> None:
        """A3: beyond what float32, and what the element type, counts."""
        backend.assert_true(case, case.call(backend))

    @over(WIDE)
    def test_windows_wider_than_the_keys(self, backend: Subject, case: Case) -> None:
        """A4: they hide nothing of the past, and the future all the same."""
        answer = case.call(backend)
        backend.assert_true(case, answer)
        causally = replace(case, options={"mask": causal()}).holding(case.arrays)
        backend.assert_true(causally, answer, what="as if causal: ")

    @over(LARGE_HEADS)
    def test_large_heads(self, backend: Subject, case: Case) -> None:
        """A1: large head sizes with each option that may choose another kernel."""
        backend.assert_true(case, case.call(backend))
