"""Gradients without a tolerance: whole numbers, and what must not change when hidden things do (A8, A9, A16).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnkit_conformance.cases import OTHER_DTYPES, Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.checks.causality import FUTURE, HIDING, largest, padded, replaced
from attnkit_conformance.compare import assert_equal, assert_within
from attnkit_conformance.gradient_cases import GradientCase, graded, with_lse
from attnkit_conformance.structures import CAUSALLY, GROUPED, LENGTHS, SOFTCAPPED, STRUCTURES
from attnkit_conformance.subject import Subject

SEEING = [case for case in STRUCTURES if case.queries <= 20]
FULL_BIAS = np.random.default_rng(5).standard_normal((2, 2, 9, 40)).astype(np.float32)
HIDING_FEW = [case for case in HIDING if case.keys < 500][::3]
SMALL = ("similar keys", "zeros")  # what ``replaced`` calls the fills whose products are finite
ONE_KEY = Case(label="one-key", heads=4, queries=2, keys=1)
BIASED = Case(label="bias", queries=9, keys=40, options={"bias": FULL_BIAS, **CAUSALLY})


class TestGradientProbes(Checks):
    """Gradients that are whole numbers, zeros, or sums that vanish."""

    @over(graded([*SEEING, *SOFTCAPPED, *each_dtype(GROUPED[1:2], OTHER_DTYPES)]))
    def test_values_are_reached_by_who_sees_them(self, backend: Subject, case: GradientCase) -> None:
        """A4, A9, A16: with Q = 0 and identity cotangents, the gradient of the values is the visibility itself."""
        weights = _attendance(backend, case)
        assert_equal(weights > 0, case.shown, what="support of the gradient of value")
        expected = case.shown / np.maximum(case.shown.sum(axis=-1, keepdims=True), 1)
        assert_within(weights, expected, backend.slack(case) * expected, what="weights in the gradient of value")

    @over(graded(each_dtype([ONE_KEY])))
    def test_groups_sum_in_the_accumulation_type(self, backend: Subject, case: GradientCase) -> None:
        """A16: 2048 + 1 - 2048 is 1, though float16 and bfloat16 have no 2049."""
        query, key, value = case.arrays
        parts = np.array([[2048.0, 1.0], [-2048.0, 0.0]])  # [group, T]; the only key has the weight 1
        output = np.zeros(case.output_shape) + np.tile(parts, (2, 1))[:, :, None]
        asked = case.holding((np.zeros_like(query), key, value)).weighing(output)
        gradient = asked.differentiate(backend, "value")[1]["value"]
        assert_equal(plain(gradient), np.ones(value.shape), what="gradient of value")

    @over([*graded([BIASED]), *with_lse(each_dtype([BIASED]))])
    def test_rows_of_the_bias_add_up(self, backend: Subject, case: GradientCase) -> None:
        """A2, A10: a number added to a whole row moves its log-sum-exp by as much, and nothing else."""
        gradient = case.differentiate(backend, "bias")[1]["bias"]
        bound = case.gradient_tolerance(backend.numerics(case.dtype)).bias
        expected = plain(case.cotangents[1]) if case.lse else np.zeros(gradient.shape[:3])
        assert_within(plain(gradient).sum(axis=-1), expected, bound.sum(axis=-1), what="row sums of gradient of bias")


class TestGradientIsolation(Checks):
    """A8: what is hidden leaves no trace in gradients."""

    @over(graded([*FUTURE[:9], *FUTURE[10:11], *FUTURE[-3:], *HIDING_FEW]))
    def test_hidden_keys_change_nothing(self, backend: Subject, case: GradientCase) -> None:
        """A8 (b): the gradient of a row's query stays as it is, whatever finite lies at the keys hidden from it.

        Bit for bit where the products with hidden keys are finite; where they overflow, there may be another way to it.
        """
        before = case.differentiate(backend, "query")[1]
        for row in sorted({0, case.queries // 2, case.queries - 1}):
            for name, arrays in replaced(case, row, nan=backend.capabilities.poison == "masked"):
                with np.errstate(all="ignore"):  # the rows that do see it may overflow
                    after = case.holding(arrays).differentiate(backend, "query")[1]
                what = f"with {name} at the keys hidden from row {row}"
                same = case.assert_same if name in SMALL else case.assert_near
                same(backend, after, before, rows=row, what=what)

    @over(graded([*LENGTHS, *each_dtype(LENGTHS[-1:], OTHER_DTYPES), GROUPED[-1]]))
    def test_padding_changes_nothing(self, backend: Subject, case: GradientCase) -> None:
        """A8 (a): NaN, infinity and the largest numbers beyond the lengths change no bit; their gradients are 0."""
        before = case.differentiate(backend)[1]
        case.assert_true(backend, before)
        for fill in (np.nan, np.inf, -np.inf, largest(case)):
            with np.errstate(all="ignore"):
                after = case.holding(padded(case, fill)).differentiate(backend)[1]
            case.assert_same(backend, after, before, what=f"with {fill} in the padding")

    @over([*graded(case for case in LENGTHS if "query_lengths" in case.options)])
    def test_cotangents_of_padding_change_nothing(self, backend: Subject, case: GradientCase) -> None:
        """A7, A8 (a): what a loss gives back for rows beyond a length is dead too, were it NaN."""
        before = case.differentiate(backend)[1]
        (output,) = case.cotangents
        beyond = np.arange(case.queries) >= case.truth.problem.query_lengths[:, None]
        for fill in (np.nan, np.inf):
            poisoned = case.weighing(np.where(beyond[:, None, :, None], fill, plain(output)))
            with np.errstate(all="ignore"):
                after = poisoned.differentiate(backend)[1]
            case.assert_same(backend, after, before, what=f"with {fill} as cotangents of the padding")


def _attendance(backend: Subject, case: GradientCase) -> Array:
    """Read off the weights ``[B, H, T, S]``: rows of a group, as many at a time as a value has columns."""
    query, key, value = case.arrays
    group = case.heads // case.kv_heads
    weights = np.zeros((case.batch, case.kv_heads, group * case.queries, case.keys))
    blank = case.holding((np.zeros_like(query), key, value))
    for start, output in _identities(weights.shape[:3], case.width):
        asked = blank.weighing(output.reshape(case.output_shape))
        found = plain(asked.differentiate(backend, "value")[1]["value"]).swapaxes(-1, -2)
        block = weights[:, :, start : start + case.width]
        block[...] = found[:, :, : block.shape[2]]
    return weights.reshape(case.batch, case.heads, case.queries, case.keys)


def _identities(shape: tuple[int, int, int], width: int) -> Iterator[tuple[int, Array]]:
    """Give cotangents that tell a block of rows of a group apart, and the number of its first row."""
    for start in range(0, shape[2], width):
        output = np.zeros((*shape, width))
        columns = np.arange(min(width, shape[2] - start))
        output[:, :, start + columns, columns] = 1
        yield start, output
