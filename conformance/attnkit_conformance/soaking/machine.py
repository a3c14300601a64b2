"""Machine: caches under random use, one step after the other, each with dice of its own.

A step is the name of an operation and a seed for what is left open: which cache, which sequences, how many tokens. It
means something whatever was done before, so that steps can be left out of a history that fails.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnkit_conformance.soaking.book import MOST_SEQUENCES, Book
from attnkit_conformance.soaking.layers import LayerSteps
from attnkit_conformance.soaking.sequences import SequenceSteps
from attnkit_conformance.soaking.states import StateSteps

# How often each operation comes, next to the others.
OPERATIONS = {
    "append": 24,
    "append_long": 1,
    "attend": 8,
    "truncate": 4,
    "drop": 4,
    "reorder": 2,
    "select": 2,
    "repeat": 1,
    "fork": 4,
    "admit": 3,
    "admit_known": 8,
    "release": 4,
    "remember": 8,
    "snapshot": 2,
    "restore": 2,
    "offload": 2,
    "resume": 3,
    "refused_append": 2,
    "refused_cut": 2,
    "refused_sequence": 1,
    "misfit": 2,
    "reset": 0.5,
    "save_and_load": 0.5,
}
_MOST_TOKENS = 120


class Step(NamedTuple):
    """An operation, and a seed for what it leaves open."""

    name: str
    seed: int


class Machine(LayerSteps, SequenceSteps, StateSteps):
    """All steps."""

    def do(self, step: Step) -> str:
        """Take a step, look at everything, and poison what is dead; gives the name of what was done."""
        self.rng = np.random.default_rng(step.seed)
        book = self.books[int(self.rng.integers(len(self.books)))]
        name = self._possible(step.name, book)
        getattr(self, f"_{name}")(book)
        self.check()
        return name

    def _possible(self, name: str, book: Book) -> str:
        """Give the operation, or another one where there is nothing to do it to, or too much already."""
        lines = book.state.lines
        if name in ("fork", "admit", "admit_known", "resume") and len(lines) >= MOST_SEQUENCES:
            return "release"
        if name.startswith("append") and sum(line.most for line in lines) > _MOST_TOKENS:
            return "truncate"
        if not lines and name not in ("append", "reorder", "snapshot", "restore", "resume", "save_and_load", "reset"):
            return "admit"
        if (name == "restore" and not book.moments) or (name == "resume" and not self.away):
            return "append"
        return name
