"""Output and log-sum-exp lie within the error budget of the declared numerics, element by element (A1, A2, A9-A12).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size, ``E`` value head
size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import DTYPES, OTHER_DTYPES, Case, each_dtype
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.draws import DRAWS
from attnkit_conformance.structures import CAUSALLY, LONG, window
from attnkit_conformance.subject import Subject

# Sizes of real models. Where the root of D is no power of two, rounding scale * query shows.
HEAD_DIMS = (16, 40, 64, 80, 96, 128, 256)


def _floats(*shape: int, spread: float = 1.0) -> np.ndarray[Any, Any]:
    return (spread * np.random.default_rng(shape).standard_normal(shape)).astype(np.float32)


def _draws(label: str, **fields: Any) -> list[Case]:
    return [Case(label=label, draw=draw, **fields) for draw in DRAWS]


def _option(label: str, **options: Any) -> Case:
    return replace(BASE, label=label, options={**BASE.options, **options})


BASE = Case(label="causal", queries=9, keys=70, head_dim=64, options=CAUSALLY)

DISTRIBUTIONS = each_dtype(
    [
        *_draws("plain", heads=1, kv_heads=1, queries=9, keys=161, head_dim=64),
        *_draws("causal", heads=1, kv_heads=1, queries=33, keys=33, head_dim=64, options=CAUSALLY),
        *_draws("causal", heads=1, kv_heads=1, queries=9, keys=40, head_dim=32, options=CAUSALLY),
    ]
)
SIZES = [
    *(
        Case(label="size", queries=9, keys=40, head_dim=size, dtype=dtype, pinned=("head_dim", "dtype"), draw=draw)
        for size in HEAD_DIMS
        for dtype in DTYPES
        for draw in ("normal", "huge")
    ),
    *(
        Case(label="size", queries=5, keys=40, head_dim=size, value_dim=width, pinned=("head_dim",))
        for size, width in ((64, 16), (16, 64), (64, 48), (96, 128), (1, 1), (7, 7), (33, 5))
    ),
]
GROUPS = each_dtype(
    replace(BASE, label="grouped", heads=heads, kv_heads=kv_heads, queries=queries)
    for heads, kv_heads in ((4, 2), (6, 1))
    for queries in (1, 17)
)
GROUPS += [
    replace(BASE, label="grouped-many", pinned=("dtype",), batch=batch, heads=heads, kv_heads=kv_heads, queries=3)
    for batch, heads, kv_heads in ((1, 8, 1), (1, 32, 4), (1, 40, 8), (17, 4, 2))
]
MANY_TILES = [
    *(replace(case, draw=draw) for draw in ("normal", "ascending") for case in LONG),
    *(replace(case, draw="climbing") for case in LONG[-2:]),
    Case(label="long-decode", heads=1, kv_heads=1, queries=1, keys=4200, head_dim=64, draw="ascending"),
]
EVERYTHING = _option(
    "everything", softcap=3.0, bias=_floats(2, 2, 9, 70), alibi=np.abs(_floats(2, 2)), sinks=_floats(2), scale=0.2
)
OPTIONS = [
    *(_option(f"scale{scale}", scale=scale) for scale in (0.0, -0.3, 1.0, 0.07, 1e-30, 1e30)),
    *(_option(f"softcap{cap}", softcap=cap) for cap in (1e-3, 0.5, 5.0, 1e4)),
    _option("softcap-scale", softcap=2.0, scale=1.5),
    *(
        _option(f"bias-{'x'.join(map(str, shape))}", bias=_floats(*shape, spread=2))
        for shape in ((9, 70), (2, 1, 1, 70), (1, 2, 9, 1), (2, 2, 9, 70))
    ),
    _option("bias-float64", bias=_floats(9, 70).astype(np.float64)),
    _option("bias-deep", bias=np.where(_floats(2, 2, 9, 70) > 0, np.float32(-30000), _floats(9, 70))),
    _option("bias-all-deep", bias=_floats(2, 2, 9, 70) - np.float32(30000)),
    _option("bias-inf", bias=np.where(_floats(2, 2, 9, 70) > 0, -np.float32(np.inf), _floats(9, 70))),
    _option("bias-softcap", bias=_floats(9, 70, spread=2), softcap=1.0),
    _option("alibi", alibi=ak.alibi_slopes(2)),
    _option("alibi-each", alibi=np.abs(_floats(2, 2))),
    _option("alibi-any-sign", alibi=np.array([-0.3, 0.0], np.float32)),
    _option("alibi-offset", alibi=ak.alibi_slopes(2), query_offset=np.array([3, 80])),
    _option("alibi-unmasked", alibi=ak.alibi_slopes(2), mask=None),
    _option("alibi-bias", alibi=ak.alibi_slopes(2), bias=_floats(9, 70)),
    _option("sinks", sinks=_floats(2)),
    _option("sinks-large", sinks=np.array([200.0, -200.0], np.float32)),
    _option("sinks-none", sinks=np.array([-np.inf, 0.5], np.float32)),
    _option("sinks-softcap", sinks=np.array([1.0, 2.0], np.float32), softcap=1.0),
    _option("softcap-window", softcap=1.0, mask=window(6)),
    EVERYTHING,
]


class TestNumerics(Checks):
    """Within the error budget of the declared numerics, and of the declared element type and shape."""

    @over(DISTRIBUTIONS)
    def test_distributions(self, backend: Subject, case: Case) -> None:
        """A1, A11, A12: seven distributions, among them scores that overflow ``exp`` and values that cancel."""
        backend.assert_true(case, case.call(backend))

    @over(SIZES)
    def test_head_sizes(self, backend: Subject, case: Case) -> None:
        """A1: ``scale = 1 / sqrt(D)`` and every feature counts, whatever ``D`` and ``E``."""
        backend.assert_true(case, case.call(backend))

    @over(GROUPS)
    def test_groups(self, backend: Subject, case: Case) -> None:
        """A9: grouped heads, decoding and prefill."""
        backend.assert_true(case, case.call(backend))

    @over(MANY_TILES)
    def test_many_tiles(self, backend: Subject, case: Case) -> None:
        """A12: many tiles, with a maximum that stays and one that moves all the time."""
        backend.assert_true(case, case.call(backend))


class TestOptions(Checks):
    """A2: scale, soft-cap, bias, ALiBi, mask, sinks, in this order."""

    @over(OPTIONS)
    def test_terms_of_the_scores(self, backend: Subject, case: Case) -> None:
        """Each term alone, in each shape it may have, and all of them."""
        backend.assert_true(case, case.call(backend))

    @over(each_dtype([EVERYTHING], OTHER_DTYPES))
    def test_terms_of_the_scores_in_every_type(self, backend: Subject, case: Case) -> None:
        """A11: float32 terms with every element type."""
        backend.assert_true(case, case.call(backend))

    @over(_draws("lse", queries=9, keys=70, lse=True))
    def test_lse(self, backend: Subject, case: Case) -> None:
        """A10: the natural logarithm of the normaliser."""
        backend.assert_true(case, case.call(backend))
