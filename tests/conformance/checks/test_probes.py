"""The one-hot probe decodes what came out, and asks for equal bits where rounding must absorb the rest."""

from __future__ import annotations

import numpy as np
import pytest

from attnkit_conformance.checks import probes
from attnkit_conformance.selftest.plain import Array, Flash, Plain, unregistered
from attnkit_conformance.structures import GROUPED, STRUCTURES

GROUPED_PLAIN = GROUPED[0]
BFLOAT16 = next(
    case
    for case in probes.TestOneHot.test_the_chosen_key_comes_out.cases
    if case.dtype == "bfloat16"  # type: ignore[attr-defined]  # set by over
)


def one_hot(backend: Plain, case: object) -> None:
    probes.TestOneHot().test_the_chosen_key_comes_out(backend=unregistered(backend), case=case)


def test_it_names_the_key_that_came_in_the_place_of_another() -> None:
    shifted = type("Shifted", (Plain,), {"value_head": lambda self, head, request: 0 * head})
    with pytest.raises(AssertionError, match=r"must read key \d+ of head 1 .* nearest to key \d+ of head 0"):
        one_hot(shifted(), GROUPED_PLAIN)


@pytest.mark.parametrize(("backend", "fails"), [(Plain, True), (Flash, False)])
def test_a_bit_too_many_is_seen_where_rounding_absorbs_everything_else(backend: type[Plain], fails: bool) -> None:
    """One unit in the last place lies within tau, but not where only the output is rounded to 16 bits."""

    def finish(self: Plain, output: Array, query: Array, request: object) -> Array:
        return backend.finish(self, output * (1 + 2.0**-8), query, request)  # type: ignore[arg-type]  # a request

    nudged = type("Nudged", (backend,), {"finish": finish})
    if fails:
        with pytest.raises(AssertionError, match="value of the chosen key"):
            one_hot(nudged(), BFLOAT16)
    else:
        one_hot(nudged(), BFLOAT16)


def test_a_key_that_is_nearest_but_not_near_is_told_as_such() -> None:
    blurred = type(
        "Blurred", (Plain,), {"divide": lambda self, output, total: Plain.divide(self, 1.01 * output, total)}
    )
    with pytest.raises(AssertionError, match="is off, yet nearest to what it must be"):
        one_hot(blurred(), STRUCTURES[0])


def test_minus_zero_is_zero() -> None:
    seen: list[bool] = []

    def finish(self: Plain, output: Array, query: Array, request: object) -> Array:
        seen.append(bool((output == 0).any()))
        return np.where(output == 0, -np.float32(0), Plain.finish(self, output, query, request))  # type: ignore[arg-type]  # a request

    one_hot(type("Negative", (Plain,), {"finish": finish})(), STRUCTURES[0])
    assert any(seen)
