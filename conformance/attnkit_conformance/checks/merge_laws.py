"""Merging in groups, and a part with itself (A10).

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from attnkit_conformance.cases import Array, Case, each_dtype, plain
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.compare import assert_within
from attnkit_conformance.subject import Subject

Part = tuple[Any, Any]
_CUTS: Final = (0, 3, 20, 41)  # parts that are short, usual and long

THREE_PARTS = each_dtype(
    [
        Case(label="three-parts", queries=9, keys=41, lse=True),
        Case(label="three-parts", queries=9, keys=41, lse=True, draw="ascending"),
        Case(label="three-parts", queries=1, keys=41, lse=True, draw="huge"),
    ]
)


class TestMergeLaws(Checks):
    """A10: what is merged first makes no difference beyond rounding."""

    @over(THREE_PARTS)
    def test_any_grouping(self, backend: Subject, case: Case) -> None:
        """The first two parts and then the third, or the first and then the others."""
        one, two, three = parts = [_part(backend, case, *cut) for cut in pairwise(_CUTS)]
        merge = backend.harness.merge
        left = merge([merge([one, two]), three])
        right = merge([one, merge([two, three])])
        _assert_near(backend, case, left, right, parts, "merged from the left and from the right")

    @over(THREE_PARTS)
    def test_a_part_with_itself(self, backend: Subject, case: Case) -> None:
        """Keys that are there twice: the same output, and a log-sum-exp that is higher by ``log 2``."""
        part = _part(backend, case, 0, case.keys)
        output, lse = backend.harness.merge([part, part])
        twice = (output, backend.array(backend.numpy(lse) - backend.numpy(lse).dtype.type(np.log(2))))
        _assert_near(backend, case, twice, part, [part], "merged with itself")


def _part(backend: Subject, case: Case, start: int, stop: int) -> Part:
    """Give output and LSE over keys ``[start, stop)`` as arrays of the backend."""
    query, key, value = case.arrays
    part = replace(case, keys=stop - start).holding((query, key[:, :, start:stop], value[:, :, start:stop]))
    output, lse = backend.harness.attention([backend.array(array) for array in part.arrays], {}, lse=True)
    return output, lse


def _assert_near(backend: Subject, case: Case, one: Any, other: Any, parts: list[Part], what: str) -> None:
    """Compare within the rounding of two merges on either side.

    A merge rounds its output, and its shares are off by what their log-sum-exps are, relative to the largest of all.
    """
    numerics = backend.numerics(case.dtype)
    size = np.max([np.abs(plain(backend.numpy(output))) for output, _ in parts], axis=0)
    height = np.max([np.abs(plain(backend.numpy(lse))) for _, lse in parts], axis=0)
    share = (16 + 4 * height[..., None]) * numerics.u_a
    assert_within(*_both(backend, one[0], other[0]), 4 * size * (numerics.u_o + share), what=f"output {what}")
    assert_within(*_both(backend, one[1], other[1]), 4 * (4 + height) * numerics.u_a, what=f"lse {what}")


def _both(backend: Subject, one: Any, other: Any) -> tuple[Array, Array]:
    return backend.numpy(one), plain(backend.numpy(other))
