"""Faults at the front door: a harness that changes what goes in or comes out, or takes what no backend may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit_conformance.harness.local import Harness, NumpyArray, Thing
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.plain import Array, Plain
from attnkit_conformance.subject import Subject

Arrays = Sequence[Array]


def front(name: str, killer: str, **members: Any) -> Mutant:
    """Put the correct backend behind a faulty door."""
    kind = type(name.title(), (Harness,), members)
    backend = type(name.title(), (Plain,), {"name": name.replace("_", "-")})
    return Mutant(name, killer, lambda: _subject(kind, backend))


def _subject(kind: Callable[..., Harness], backend: type[Plain]) -> Subject:
    made = backend()
    return Subject(kind(made.name, made, made))


def given(change: Callable[..., Arrays]) -> Any:
    """Make the call with other arrays."""

    def attention(self: Harness, arrays: Arrays, options: Mapping[str, Any], lse: bool = False) -> tuple[Thing, ...]:
        return Harness.attention(self, change(*arrays), options, lse)

    return attention


def of_one_type(query: Array, key: Array, value: Array) -> Arrays:
    return [query, key.astype(query.dtype), value.astype(query.dtype)]


def cycled(query: Array, key: Array, value: Array) -> Arrays:
    """Go round the key/value heads until there are enough."""
    if query.ndim < 4 or query.shape[1] % key.shape[1] == 0:
        return [query, key, value]
    heads = np.arange(query.shape[1]) % key.shape[1]
    return [query, key[:, heads], value[:, heads]]


def clipped(query: Array, key: Array, value: Array) -> Arrays:
    """Let the heads that are left over read the last key/value head."""
    if query.ndim < 4 or query.shape[1] % key.shape[1] == 0:
        return [query, key, value]
    heads = np.minimum(np.arange(query.shape[1]), key.shape[1] - 1)
    return [query, key[:, heads], value[:, heads]]


def by_way_of(dtype: str) -> Any:
    """Lose bits on the way in."""
    return lambda self, array: Harness.array(self, array.astype(dtype).astype(array.dtype))


def squeezed(self: Harness, array: NumpyArray) -> Thing:
    """Lose the axes of length 1."""
    return Harness.array(self, array.squeeze())


FRONT_MUTANTS = [
    front("mixed_types_cast", "TestRefused::test_mixed_types", attention=given(of_one_type)),
    front("heads_that_do_not_divide_cycled", "TestRefused::test_heads_that_do_not_divide", attention=given(cycled)),
    front("heads_that_do_not_divide_clipped", "TestRefused::test_heads_that_do_not_divide", attention=given(clipped)),
    front("arrays_by_way_of_float32", "TestHarness::test_arrays_come_back", array=by_way_of("float32")),
    front("arrays_by_way_of_float16", "TestHarness::test_arrays_come_back", array=by_way_of("float16")),
    front("arrays_squeezed", "TestHarness", array=squeezed),
]
