"""Correct backends of many kinds, and no alarm about any of them.

What they declare differs, and so do their tiles, the order of their sums, and what they round where they may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import attnkit as ak
from attnkit_conformance.items import Item, items
from attnkit_conformance.selftest.differentiable import Differentiable
from attnkit_conformance.selftest.equivalents import EQUIVALENTS
from attnkit_conformance.selftest.own_cache import OwnCaches
from attnkit_conformance.selftest.plain import EVERYTHING, Flash, Plain, unregistered
from attnkit_conformance.selftest.running import failures
from attnkit_conformance.selftest.softmax import Split
from attnkit_conformance.selftest.step_mutants import Mirroring
from attnkit_conformance.subject import Subject

# What a backend does not take is asked for all the same, and must not count against it.
MODEST = {
    "core": ak.Capabilities(),
    "halves": replace(EVERYTHING, dtypes=frozenset({"float16", "bfloat16"}), lse=False, kv_dtype=False),
    "picky": replace(
        EVERYTHING,
        dtypes=frozenset({"float64"}),
        head_dims=ak.Sizes(32, 128, 32),
        value_dim=False,
        max_key_length=1024,
        gqa=False,
        lengths=False,
        window=False,
        deterministic=False,
    ),
}


class SplitFlash(Split, Flash):
    """Rounds weights, and merges three parts of the keys."""

    name = "split-flash"


def modest(name: str) -> Subject:
    """Put a backend under test that declares little, in large tiles."""
    return unregistered(type("Modest", (Plain,), {"name": name, "declared": MODEST[name], "tile": 256})())


CORRECT: dict[str, Callable[[], Subject]] = {
    "differentiable": lambda: unregistered(Differentiable()),
    "flash": lambda: unregistered(Flash()),
    "split-flash": lambda: unregistered(SplitFlash()),
    "own-caches": lambda: unregistered(OwnCaches()),
    "mirroring": lambda: unregistered(Mirroring()),
    **{name: partial(modest, name) for name in MODEST},
    **{equivalent.mutant.name: equivalent.mutant.subject for equivalent in EQUIVALENTS},
}


def false_alarms(
    sample: float = 1.0, *, seed: int = 0, names: Iterable[str] = CORRECT
) -> Iterator[tuple[str, Item, Exception]]:
    """Run a share of all items on correct backends; give what fails: the backend, the item and the error."""
    chosen = items(seed=seed, sample=sample)
    for name in names:
        for item, error in failures(CORRECT[name](), chosen):
            yield name, item, error
