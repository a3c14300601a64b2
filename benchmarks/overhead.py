"""Overhead: what the front door costs a call, over a path that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import attnkit as ak
from attnkit.registry import registry
from benchmarks.results import Result
from benchmarks.timing import seconds

Array = np.ndarray[Any, Any]
_CALLS, _ROUNDS = 1000, 40


class Nothing(ak.Backend):
    """A backend whose path gives the query back."""

    name = "nothing"

    def capabilities(self) -> ak.Capabilities:
        """Take what the benchmark asks for."""
        return ak.Capabilities(window=True, lengths=True)

    def attention(self, query: Array, *_others: object) -> ak.AttentionOutput:
        """Do nothing."""
        return ak.AttentionOutput(query)

    def from_numpy(self, array: Array) -> Array:
        """Copy."""
        return array.copy()

    def to_numpy(self, array: Array) -> Array:
        """Copy."""
        return array.copy()


@contextmanager
def nothing() -> Iterator[None]:
    """Register the backend for a while."""
    ak.register(ak.BackendSpec("nothing", Nothing))
    try:
        yield
    finally:
        registry.unregister("nothing")


def small_call() -> Iterator[Result]:
    """Time ``attention`` where the path costs nothing."""
    array = np.ones((1, 1, 1, 8), np.float32)
    options: list[tuple[str, dict[str, Any], float | None]] = [
        ("", {}, 10),
        (" with a mask", {"mask": ak.Mask.causal() & ak.Mask.window(4)}, 10),
        (" with a mask and lengths", {"mask": ak.Mask.causal(), "kv_lengths": np.array([1])}, None),
    ]
    with nothing():
        for label, option, bar in options:
            call = partial(ak.attention, array, array, array, **option, backend="nothing")
            least = min(seconds(call, calls=_CALLS) for _ in range(_ROUNDS))
            yield Result(f"overhead of a small call{label}", least * 1e6, bar, 3, "us")


def new_signature() -> Iterator[Result]:
    """Time the first call of a signature: request, selection and plan."""
    key = np.ones((1, 1, 1, 8), np.float32)
    queries = [np.ones((1, 1, length, 8), np.float32) for length in range(2, 402)]
    with nothing():
        times = [seconds(partial(ak.attention, query, key, key, backend="nothing")) for query in queries]
    yield Result("overhead of a new signature", median(times) * 1e6, 100, None, "us")
