"""The cache of a backend under test: ``attnkit.KVCache`` by way of the harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnkit_conformance.harness.local import Harness, Thing

NumpyArray = np.ndarray[Any, Any]


class _Counters:
    """The part that a stack and its layers have in common."""

    def __init__(self, harness: Harness, cache: Thing, layer: int | None = None) -> None:
        self._harness, self._cache, self._layer = harness, cache, layer

    def counted(self, name: str) -> NumpyArray:
        """Give what ``stored``, ``next_position`` or ``capacity`` show, ``[B]``, or ``batch_size`` or ``nbytes``."""
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
    """A stack of layers over a list of sequences."""

    def __getitem__(self, layer: int) -> LayerUnderTest:
        return LayerUnderTest(self._harness, self._cache, layer)

    def begin_step(self, tokens: int, lengths: Any = None) -> CacheUnderTest:
        """Begin a step; gives what stands in for the cache inside it."""
        return CacheUnderTest(self._harness, self._call("begin_step", tokens, lengths=lengths))

    # Forgetting

    def truncate(self, lengths: Any) -> None:
        """Keep the positions below."""
        self._call("truncate", lengths)

    def drop(self, count: Any) -> None:
        """Drop the last tokens."""
        self._call("drop", count)

    def reset(self) -> None:
        """Forget everything."""
        self._call("reset")

    # The list of sequences

    def reorder(self, indices: Any) -> None:
        """Permute or duplicate sequences."""
        self._call("reorder", indices)

    def select(self, indices: Any) -> None:
        """Keep some sequences, in some order."""
        self._call("select", indices)

    def repeat(self, count: int) -> None:
        """Make several of each sequence."""
        self._call("repeat", count)

    def fork(self, sequence: int) -> int:
        """Add a copy of a sequence."""
        return int(self._call("fork", sequence))

    def admit(self, tokens: Sequence[int] | None = None) -> int:
        """Add an empty sequence, or one that begins with what is known of a text."""
        return int(self._call("admit") if tokens is None else self._call("admit", list(tokens)))

    def release(self, sequence: int) -> None:
        """Take a sequence out."""
        self._call("release", sequence)

    def remember(self, sequence: int, tokens: Sequence[int]) -> int:
        """Tell which tokens a sequence holds."""
        return int(self._call("remember", sequence, list(tokens)))

    def match_prefix(self, tokens: Sequence[int]) -> int:
        """Give how much of a text is known."""
        return int(self._call("match_prefix", list(tokens)))

    # Going away and coming back

    def snapshot(self) -> Thing:
        """Keep the present state."""
        return self._harness.cache_kept(self._cache, "snapshot")

    def restore(self, snapshot: Thing) -> None:
        """Go back to a state."""
        self._call("restore", snapshot)

    def offload(self, sequence: int, *, to_file: bool = False) -> Thing:
        """Take a sequence out of the backend's memory."""
        if to_file:
            return self._harness.offload_to_file(self._cache, sequence)
        return self._harness.cache_kept(self._cache, "offload", sequence)

    def resume(self, offloaded: Thing) -> int:
        """Bring a sequence back; gives its number."""
        return int(self._call("resume", offloaded))

    def save(self) -> Thing:
        """Write everything into a file."""
        return self._harness.save_cache(self._cache)

    def loaded(self, file: Thing, config: Mapping[str, Any] | None = None) -> CacheUnderTest:
        """Give another cache, made of a file."""
        return CacheUnderTest(self._harness, self._harness.load_cache(file, config))

    def damaged(self, file: Thing, place: float, bits: int) -> Thing:
        """Copy a file with a fault in it."""
        return self._harness.damaged(file, place, bits)

    def check_invariants(self) -> None:
        """Let the cache look at its own bookkeeping."""
        self._harness.cache_checked(self._cache)
