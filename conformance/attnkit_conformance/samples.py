"""Sample: a case drawn at random, asked once and never remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnkit import reference
from attnkit.tolerance import Arithmetic, Tolerance
from attnkit_conformance.cases import Case
from attnkit_conformance.covering import Choice
from attnkit_conformance.features import FEATURES


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample(Case):
    """A case among thousands."""

    def __str__(self) -> str:
        return f"{super().__str__()}-seed{self.seed}"

    @cached_property
    def truth(self) -> reference.Truth:
        """What the oracle gives."""
        return reference.attention(*self.arrays, **self.options)

    def tolerance(self, numerics: Arithmetic) -> Tolerance:
        """Give how far a backend of these numerics may be from the truth."""
        return self.truth.tolerance(numerics)


def swarm(rng: np.random.Generator, share: float = 0.5) -> frozenset[str]:
    """Choose the features that samples may have at all: more of them are met in depth when others stay away.

    That is swarm testing (Groce and others, ISSTA 2012).
    """
    return frozenset(name for name in FEATURES if rng.random() < share)


def any_choice(
    rng: np.random.Generator, enabled: frozenset[str], values: Mapping[str, Sequence[str]] = FEATURES
) -> Choice:
    """Choose a value of every feature, the first of those that are not enabled."""
    return {name: str(rng.choice(some)) if name in enabled else some[0] for name, some in values.items()}
