"""Law: two calls of which the answer to one says what the answer to the other must be.

A law needs no oracle, so that it also holds where the oracle could be wrong.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Array, Case, plain
from attnkit_conformance.compare import assert_equal, assert_within

if TYPE_CHECKING:
    from attnkit_conformance.subject import Answer, Subject


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two calls, and how the answer to ``first`` is that to ``second``.

    ``first.output[..., columns] = factor * second.output[rows][..., columns] + moved``, and
    ``first.lse = second.lse[rows] + raised``.

    Attributes
    ----------
    first, second
        The calls.
    rows
        Index into ``[B, H, T]`` of the second's answer.
    columns
        Which columns of the output; the others are not compared.
    factor, moved, raised
        As in the formulas.
    """

    first: Case
    second: Case
    rows: Any = ...
    columns: Any = field(default_factory=lambda: slice(None))
    factor: float = 1.0
    moved: float = 0.0
    raised: Array | float = 0.0

    def output(self, array: Array) -> Array:
        """Bring an output of the second, or its bound, to the place of the first's."""
        return np.asarray(array[self.rows][..., self.columns])


@dataclass(frozen=True, kw_only=True, eq=False)
class Law(Case):
    """A case with a partner.

    Attributes
    ----------
    partner
        Makes the pair of the case itself.
    bits
        The capability that promises equal bits, or an empty string where shapes or structures differ.
    """

    partner: Callable[[Case], Pair] = field(default=lambda case: Pair(first=case, second=case))
    bits: str = ""

    @cached_property
    def pair(self) -> Pair:
        """Both calls."""
        alone = Case(**{item.name: getattr(self, item.name) for item in fields(Case)})
        return self.partner(alone.holding(self.arrays))

    def undeclared(self, capabilities: ak.Capabilities) -> tuple[str, ...]:
        """Give the fields that say no to the first call, or else to the second."""
        return self.pair.first.undeclared(capabilities) or self.pair.second.undeclared(capabilities)

    def call(self, subject: Subject) -> Answer:
        """Make the call that is not declared, or else the first."""
        both = self.pair.first, self.pair.second
        return next((case for case in both if case.undeclared(subject.capabilities)), both[0]).call(subject)

    def assert_holds(self, subject: Subject) -> None:
        """Make both calls and compare their answers."""
        __tracebackhide__ = True
        pair = self.pair
        one, two = pair.first.call(subject), pair.second.call(subject)
        for answer in (one, two):
            finite = np.isfinite(answer.output)
            assert_equal(finite, np.ones_like(finite), what="whether the output is finite")
        promised = bool(self.bits) and all(getattr(subject.capabilities, name) for name in ("deterministic", self.bits))
        compare = self._assert_bits if promised else self._assert_near
        compare(subject, one, two)

    def _assert_bits(self, subject: Subject, one: Answer, two: Answer) -> None:
        __tracebackhide__ = True
        if self.pair.factor != 1:
            subject.numerics(self.dtype)  # not every arithmetic scales as a profile does
        factor = np.asarray(self.pair.factor, one.output.dtype)
        expected = self.pair.output(two.output) * factor
        assert_equal(one.output[..., self.pair.columns], expected, what=f"output by the law {self.label}")
        if one.lse is not None and two.lse is not None:
            assert_equal(one.lse, two.lse[self.pair.rows], what=f"lse by the law {self.label}")

    def _assert_near(self, subject: Subject, one: Answer, two: Answer) -> None:
        """Compare within the bounds of both calls together."""
        __tracebackhide__ = True
        pair, numerics = self.pair, subject.arithmetic(self.dtype)
        of_one, of_two = pair.first.tolerance(numerics), pair.second.tolerance(numerics)
        expected = pair.factor * pair.output(plain(two.output)) + pair.moved
        bound = of_one.output[..., pair.columns] + abs(pair.factor) * pair.output(of_two.output)
        assert_within(one.output[..., pair.columns], expected, bound, what=f"output by the law {self.label}")
        if one.lse is not None and two.lse is not None:
            lse, bound = plain(two.lse)[pair.rows] + pair.raised, of_one.lse + of_two.lse[pair.rows]
            assert_within(one.lse, lse, bound, what=f"lse by the law {self.label}")
