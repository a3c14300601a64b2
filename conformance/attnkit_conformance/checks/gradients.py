"""Gradients lie within the error budget of the declared numerics, and are exactly 0 where nothing passes (A7, A16).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from dataclasses import replace

from attnkit_conformance.cases import OTHER_DTYPES, Case, each_dtype
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.edges import EMPTY_AXES, EMPTY_ROWS, SINKS, SUNK_ROWS
from attnkit_conformance.checks.numerics import EVERYTHING, OPTIONS
from attnkit_conformance.draws import DRAWS
from attnkit_conformance.gradient_cases import GradientCase, graded, with_lse
from attnkit_conformance.structures import CAUSALLY, GROUPED, LONG, SOFTCAPPED, STRUCTURES, window
from attnkit_conformance.subject import Subject

PREFILL = Case(label="prefill", queries=9, keys=40, head_dim=32, options=CAUSALLY)
DISTRIBUTIONS = graded(each_dtype(replace(PREFILL, draw=draw) for draw in DRAWS))
GROUPS = graded(
    each_dtype(
        replace(PREFILL, label=label, queries=queries, heads=heads, kv_heads=kv_heads, options=options)
        for heads, kv_heads in ((4, 2), (6, 1))
        for label, queries, options in (("decode", 1, {}), ("window", 17, {"mask": window(6)}))
    )
)
SIZES = graded(
    Case(label="size", queries=5, keys=17, head_dim=size, value_dim=width, pinned=("head_dim",))
    for size, width in ((1, 1), (7, 7), (64, 0), (128, 0), (64, 16), (16, 64), (33, 5))
)
# A scale of 1e30 leaves no digit of a score, and so none of a weight that is recomputed from it.
TERMS = graded(case for case in OPTIONS if case.options.get("scale") != 1e30)
LARGE = graded([LONG[1], LONG[2], LONG[6], LONG[-2], LONG[-1]])
WITH_LSE = with_lse(
    [
        *(replace(PREFILL, draw=draw) for draw in DRAWS),
        *each_dtype([PREFILL, replace(PREFILL, label="sinks", options={**CAUSALLY, **SINKS})], OTHER_DTYPES),
        *GROUPED,
        *SOFTCAPPED,
        EVERYTHING,
        *EMPTY_ROWS[:3],
        *SUNK_ROWS,
    ]
)


class TestGradients(Checks):
    """A16: gradients of query, key, value, bias and sinks."""

    @over(graded([*STRUCTURES, *SOFTCAPPED]))
    def test_structures(self, backend: Subject, case: GradientCase) -> None:
        """A4, A16: for every way of seeing; exact zeros at the keys that nobody sees, and in rows that see nothing."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(DISTRIBUTIONS)
    def test_distributions(self, backend: Subject, case: GradientCase) -> None:
        """A11, A12: seven distributions in every element type."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(GROUPS)
    def test_groups(self, backend: Subject, case: GradientCase) -> None:
        """A9: keys and values sum over their group."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(SIZES)
    def test_head_sizes(self, backend: Subject, case: GradientCase) -> None:
        """A1: whatever ``D`` and ``E``."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(LARGE)
    def test_many_tiles(self, backend: Subject, case: GradientCase) -> None:
        """A12: beyond the tiles in common use."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(TERMS)
    def test_terms_of_the_scores(self, backend: Subject, case: GradientCase) -> None:
        """A2: scale, soft-cap, ALiBi; bias in each shape, whose gradient has that shape; sinks."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(graded(each_dtype([EVERYTHING], OTHER_DTYPES)))
    def test_terms_of_the_scores_in_every_type(self, backend: Subject, case: GradientCase) -> None:
        """A11: gradients of float32 terms are float32, whatever the query's type."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(WITH_LSE)
    def test_lse(self, backend: Subject, case: GradientCase) -> None:
        """A10: the log-sum-exp has gradients too."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over(graded([*EMPTY_ROWS, *SUNK_ROWS, *each_dtype(EMPTY_ROWS[:1], OTHER_DTYPES)]))
    def test_empty_rows(self, backend: Subject, case: GradientCase) -> None:
        """A7: nothing passes through a row that sees no key, and it disturbs no other."""
        case.assert_true(backend, case.differentiate(backend)[1])

    @over([*graded(EMPTY_AXES), *with_lse(EMPTY_AXES[6:])])
    def test_empty_axes(self, backend: Subject, case: GradientCase) -> None:
        """A7: empty batch, T = 0 and S = 0."""
        case.assert_true(backend, case.differentiate(backend)[1])
