"""Every law holds for the oracle, so that a backend that breaks one is wrong, not the law."""

from __future__ import annotations

import numpy as np
import pytest

from attnkit_conformance.checks import laws
from attnkit_conformance.pairs import Law

LAWS = [*laws.KEYS, *laws.ROWS, *laws.HEADS, *laws.FEATURES, *laws.VALUES, *laws.MASKS, *laws.TERMS]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_it_holds_for_the_oracle(law: Law) -> None:
    pair = law.pair
    one, two = pair.first.truth, pair.second.truth
    expected = pair.factor * pair.output(two.output) + pair.moved
    np.testing.assert_allclose(one.output[..., pair.columns], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(one.lse, two.lse[pair.rows] + pair.raised, rtol=0, atol=1e-10)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_its_calls_differ(law: Law) -> None:
    """A law between a call and itself would say nothing."""
    one, two = law.pair.first, law.pair.second
    same = all(np.array_equal(a, b) for a, b in zip(one.arrays, two.arrays, strict=True))
    assert not same or one.options.keys() != two.options.keys() or str(one.options) != str(two.options)


@pytest.mark.parametrize("law", [law for law in LAWS if law.bits], ids=str)
def test_equal_bits_are_asked_for_only_between_equal_shapes(law: Law) -> None:
    one, two = law.pair.first, law.pair.second
    assert [array.shape for array in one.arrays] == [array.shape for array in two.arrays]
    assert [array.dtype for array in one.arrays] == [array.dtype for array in two.arrays]
    assert one.options.keys() == two.options.keys()
    assert np.log2(law.pair.factor) % 1 == law.pair.moved == 0


def test_names_tell_laws_apart() -> None:
    assert len({str(law) for law in LAWS}) == len(LAWS)
