"""The core of attention in numbers: what every backend must get right, in one element type of its own choice (level 1).

Axes: ``H`` query heads, ``T`` query length, ``S`` key length, ``D`` query/key head size.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from attnkit_conformance.cases import OTHER_DTYPES, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_within
from attnkit_conformance.draws import DRAWS
from attnkit_conformance.structures import CAUSALLY, causal
from attnkit_conformance.subject import Subject

DISTRIBUTIONS = [
    replace(case, draw=draw)
    for case in (
        Case(label="core", queries=9, keys=33, head_dim=64),
        Case(label="core-causal", queries=33, keys=33, head_dim=64, options=CAUSALLY),
        Case(label="core-decode", queries=1, keys=64, head_dim=80),
    )
    for draw in DRAWS
]
TAILS = [
    Case(label=f"tail{kind}", queries=queries or keys, keys=keys, draw="ascending", options=options)
    for keys in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64)
    for kind, queries, options in (("", 1, {}), ("-causal", 0, CAUSALLY))
]
LONG_TAILS = [
    Case(label="tail-long", queries=1, keys=keys, draw="ascending")
    for keys in (65, 127, 128, 129, 255, 256, 257, 511, 512, 513)
]
ODD = Case(label="tail-odd", batch=3, heads=5, kv_heads=5, queries=17, keys=37, head_dim=9, pinned=("head_dim",))
ONE_KEY = [Case(label="one-key", queries=queries, keys=1) for queries in (1, 3)]
DEEP = [
    Case(label=f"deep{size:.0e}", queries=6, keys=6, options={"mask": causal(), "scale": -size})
    for size in (2e4, 1e5, 1e6, 1e9, 1e30, 1e38)
]
SCALES = [
    Case(label=f"scale-{type(scale).__name__}{scale}", queries=5, keys=9, options={"scale": scale})
    for scale in (0.5, np.float32(0.5), np.float64(0.5), np.float64(-0.1), 0, 2)
]


class TestCore(Checks):
    """Unmasked and causal attention of one head count, over keys that everyone takes."""

    @over([*DISTRIBUTIONS, *each_dtype([ODD], OTHER_DTYPES)])
    def test_distributions(self, backend: Subject, case: Case) -> None:
        """A1, A12: seven distributions, among them scores that overflow ``exp`` and values that cancel."""
        backend.assert_true(case, case.call(backend))

    @over([*TAILS, *LONG_TAILS, ODD])
    def test_every_key_counts(self, backend: Subject, case: Case) -> None:
        """A1: lengths around the sizes of tiles, where the last key weighs most."""
        backend.assert_true(case, case.call(backend))

    @over([*ONE_KEY, *each_dtype(ONE_KEY, OTHER_DTYPES)])
    def test_one_key_gives_its_value(self, backend: Subject, case: Case) -> None:
        """A12: but for the last roundings, whatever the score is, the largest and the lowest among them."""
        query, key, value = map(plain, case.arrays)
        for size in (1.0, _large(case.dtype)):
            asked = case.holding((size * np.sign(query), size * np.sign(key), value))
            expected = np.broadcast_to(plain(asked.arrays[2]), case.output_shape)
            bound = backend.slack(case) * np.abs(expected)
            what = f"output for one key and numbers of {size:.3g}"
            assert_within(asked.call(backend).output, expected, bound, what=what)

    @over(DEEP)
    def test_no_score_is_too_low_to_count(self, backend: Subject, case: Case) -> None:
        """A6, A7: keys are hidden exactly: visible scores lower than any number that could stand for ``-inf``."""
        query, key, value = (np.zeros(array.shape) for array in case.arrays)
        query[..., 0] = key[..., 0] = 1
        value[...] = 1 + np.arange(case.keys)[:, None]
        alike = case.holding((query, key, value))
        answer = alike.call(backend)
        seen = 1 + np.arange(case.queries)
        mean = np.broadcast_to((seen[:, None] + 1) / 2, case.output_shape)
        assert_within(answer.output, mean, backend.slack(case) * mean, what="mean of the visible values")
        if answer.lse is not None:
            bound = 8 * backend.numerics(case.dtype).u_a * np.abs(alike.truth.lse)
            assert_within(answer.lse, alike.truth.lse, bound, what="lse")

    @over(SCALES)
    def test_scalars_promote_nothing(self, backend: Subject, case: Case) -> None:
        """A11: a scale may be a Python number or NumPy's, of any width; the result stays of the query's type."""
        backend.assert_true(case, case.call(backend))


def _large(dtype: str) -> float:
    """Give a number whose square, summed over a head, is finite in the accumulation type."""
    most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # it has no types
    return min(most, 1e15)
