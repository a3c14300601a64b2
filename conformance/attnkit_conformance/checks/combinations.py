"""Any two features together, and any three of those that decide who sees whom (A2-A11, A18).

What works alone may fail in company, and what is refused alone may slip through beside something that is taken.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.covering import Choice, covering
from attnkit_conformance.features import FEATURES, NEUTRAL, SHAPES, Sizes, declared, fields
from attnkit_conformance.subject import Subject

TRIPLES: Final = ("mask", "group", "lengths", "shape")


def _fields(choice: Choice) -> dict[str, Any]:
    """Give the fields of a case, with options that are the same in every run."""
    rng = np.random.default_rng(zlib.crc32(repr(sorted(choice.items())).encode()))
    return fields(choice, Sizes(2, *SHAPES[choice["shape"]], 16), rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reduced(Case):
    """A case that leaves out what a backend does not declare, so that all else still meets in it."""

    choice: Choice = field(default_factory=lambda: NEUTRAL)

    def on(self, capabilities: ak.Capabilities) -> Self:
        """Move to the nearest that a backend declares."""
        left = {
            name: value if declared(name, value, capabilities) else NEUTRAL[name] for name, value in self.choice.items()
        }
        reduced = type(self)(**_fields(left), choice=left, seed=self.seed)
        return super(Reduced, reduced).on(capabilities)


COMBINED = [Case(**_fields(choice), pinned=("dtype",)) for choice in covering(FEATURES, TRIPLES)]
_ANOTHER_ORDER = {name: FEATURES[name] for name in reversed([*FEATURES])}  # gives other rows than the first
REDUCED = [Reduced(**_fields(choice), choice=choice) for choice in covering(_ANOTHER_ORDER)]


class TestCombinations(Checks):
    """A18: options are applied together as they are alone, or refused with all reasons."""

    @over(COMBINED)
    def test_applied_or_refused_together(self, backend: Subject, case: Case) -> None:
        """Every two values of all features, and every three of masks, groups, lengths and shapes."""
        backend.assert_true(case, case.call(backend))

    @over(REDUCED)
    def test_whatever_is_declared(self, backend: Subject, case: Reduced) -> None:
        """Every two values of what a backend declares, however little that is."""
        backend.assert_true(case, case.call(backend))
