"""The cache of a backend under test: ``attnkit.KVCache`` by way of the harness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit_conformance.harness.local import Harness, Thing

NumpyArray = np.ndarray[Any, Any]


class _Counters:
    """The part that a stack and its layers have in common."""

    def __init__(self, harness: Harness, cache: Thing, layer: int | None = None) -> None:
        self._harness, self._cache, self._layer = harness, cache, layer

    def counted(self, name: str) -> NumpyArray:
        """Give what the counter ``stored``, ``next_position`` or ``capacity`` shows, ``[B]``."""
        return self._harness.cache_count(self._cache, self._layer, name)

    def counter(self, name: str) -> Thing:
        """Give a counter as it was handed out."""
        return self._harness.cache_counter(self._cache, self._layer, name)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._harness.cache_call(self._cache, self._layer, method, *arguments, **options)


class LayerUnderTest(_Counters):
    """One layer."""

    def append(self, key: Thing, value: Thing, *, lengths: Any = None) -> None:
        """Append arrays of the backend."""
        self._call("append", key, value, lengths=lengths)

    def attend(self, query: Thing, options: Mapping[str, Any], *, lse: bool = False) -> tuple[Thing, ...]:
        """Attend with a query of the backend: output, or output and LSE."""
        if lse:
            return tuple(self._call("attend_with_lse", query, **options))
        return (self._call("attend", query, **options),)

    def read(self) -> tuple[Thing, Thing]:
        """Give what it stores, as it is handed out."""
        key, value = self._call("read")
        return key, value


class CacheUnderTest(_Counters):
    """A stack of layers."""

    def __getitem__(self, layer: int) -> LayerUnderTest:
        return LayerUnderTest(self._harness, self._cache, layer)

    def truncate(self, lengths: Any) -> None:
        """Keep as many tokens."""
        self._call("truncate", lengths)

    def drop(self, count: Any) -> None:
        """Drop the last tokens."""
        self._call("drop", count)

    def reset(self) -> None:
        """Forget everything."""
        self._call("reset")

    def reorder(self, indices: Any) -> None:
        """Permute or duplicate sequences."""
        self._call("reorder", indices)
