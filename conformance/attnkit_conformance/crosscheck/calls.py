"""Calls: requests that are asked in a way of their own, or whose answers are held to more than their bounds.

Axes: ``B`` batch, ``K`` key/value heads, ``S`` key length, ``D`` query/key head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Self, TypeVar

import numpy as np

from attnkit_conformance.cases import Array, Case, plain
from attnkit_conformance.checks.quality import HALVES
from attnkit_conformance.measuring import Mismatch
from attnkit_conformance.oracle import deviation_of
from attnkit_conformance.pairs import Law
from attnkit_conformance.statistic import assert_size, assert_two_sided
from attnkit_conformance.subject import Answer, Subject

AnyCase = TypeVar("AnyCase", bound=Case)


class BrokenPromiseError(Exception):
    """Answers that break what their side declares, whether or not every number is within its bound.

    Attributes
    ----------
    what
        ``"law"`` or ``"rounding"``.
    """

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


class RepeatedHead(Case):
    """Keys and values of one head, repeated for all others without a copy (stride 0)."""

    def holding(self, arrays: Iterable[Array]) -> Self:
        """Give the same case with other numbers, of which keys and values are those of the first head."""
        query, key, value = arrays
        return super().holding((query, *(np.broadcast_to(array[:, :1], array.shape) for array in (key, value))))

    def call(self, subject: Subject) -> Answer:
        """Ask a backend with arrays that lie so."""
        query, *others = self.arrays
        wide = [subject.harness.broadcast(array[:, :1].copy(), array.shape) for array in others]
        return subject.ask([subject.array(query), *wide], subject.options(self.options), lse=subject.capabilities.lse)


class BitwiseLaw(Law):
    """A law that is kept bit for bit by whoever declares ``deterministic`` and the capability in ``bits``."""

    def call(self, subject: Subject) -> Answer:
        """Make both calls where they must agree; the answer is that to the case itself."""
        if all(getattr(subject.capabilities, name) for name in ("deterministic", self.bits)):
            with _promised("law"):
                self.assert_holds(subject)
        return subject.attention(self.arrays, self.options, lse=subject.capabilities.lse)


class Rounding(Case):
    """Many numbers of 16 bits: their errors point both ways, and are as large as the declared numerics make them."""

    def call(self, subject: Subject) -> Answer:
        """Ask a backend, and look at its errors together where each is within its own bound."""
        answer = super().call(subject)
        if self.dtype in HALVES and answer.output.shape == self.output_shape:
            numerics, truth = subject.numerics(self.dtype), self.truth
            tau = self.tolerance(numerics).output
            if (np.abs(plain(answer.output) - truth.output) <= tau).all():
                with _promised("rounding"):
                    assert_two_sided(answer.output, truth.output, tau, what="output")
                    assert_size(answer.output, truth.output, deviation_of(truth, numerics), what="output")
        return answer


Promise = BitwiseLaw | Rounding
"""A request that is about more than one answer, or about all numbers of one together."""


def asked_as(kind: type[AnyCase], case: Case) -> AnyCase:
    """Give a case as one of another kind, with the same fields."""
    return kind(**{item.name: getattr(case, item.name) for item in fields(case)})


@contextmanager
def _promised(what: str) -> Iterator[None]:
    try:
        yield
    except Mismatch as error:
        raise BrokenPromiseError(what, str(error)) from error
