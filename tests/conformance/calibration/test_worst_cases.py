"""The worst case of a sum is reached: each profile of sums is needed, and none is wider than it must be.

One key outweighs all others, whose weights are each lost when they are added to the normaliser, and whose values pull
the other way: numerator and denominator are off by as much as they can be.
"""

from __future__ import annotations

import numpy as np
import pytest

from attnkit.numerics import STRICT_FP32, Sums
from attnkit_conformance.calibration.zoo import ZOO
from attnkit_conformance.cases import Case, plain

KEYS = 8192


def lossy(spacings: float) -> Case:
    """Give a call whose first key has the weight 1, and each other one that share of the spacing at 1."""
    case = Case(label="lossy", batch=1, heads=1, kv_heads=1, queries=1, keys=KEYS, head_dim=1, options={"scale": 1.0})
    query, key, value = (np.ones_like(plain(array)) for array in case.arrays)
    key[:, :, 0], key[:, :, 1:] = 0, np.log(spacings * 2.0**-23)
    value[:, :, 0] = -1 - 2.0**-20
    return case.holding((query, key, value))


def ratios(name: str, case: Case, sums: Sums) -> tuple[float, float]:
    """Give the errors of an algorithm's output and LSE in units of the bounds for a way of summing."""
    subject = next(algorithm for algorithm in ZOO if algorithm.name == name).make()
    answer, bound = case.call(subject), case.tolerance(STRICT_FP32.with_sums(sums))
    assert answer.lse is not None
    output, lse = np.abs(plain(answer.output) - case.truth.output), np.abs(plain(answer.lse) - case.truth.lse)
    return float((output / bound.output).max()), float((lse / bound.lse).max())


@pytest.mark.parametrize("name", ["sequential", "sequential FMA"])
def test_sequential_sums_reach_their_bound(name: str) -> None:
    case = lossy(0.49)
    output, lse = ratios(name, case, "sequential")
    assert 0.9 < output <= 1
    assert 0.9 < lse <= 1
    assert min(ratios(name, case, "independent")) > 10


def test_truncating_sums_reach_theirs() -> None:
    case = lossy(0.98)
    output, lse = ratios("truncating", case, "truncating")
    assert output <= 1
    assert 0.9 < lse <= 1
    assert ratios("truncating", case, "sequential")[1] > 1.8


@pytest.mark.parametrize("spacings", [0.49, 0.98])
@pytest.mark.parametrize("name", ["whole", "pairwise", "tiles of 64"])
def test_blocks_and_pairs_are_independent_enough(name: str, spacings: float) -> None:
    assert max(ratios(name, lossy(spacings), "independent")) <= 0.9
