"""Wrong calls, in tables: each is refused with a documented error that names what is wrong, and changes nothing.

A row is ``(name, call, error, *parts)``: the call takes a ``World`` and must raise exactly ``error``, with every part
in its message: the argument, the value that came, and for a shape the symbols of the one that is expected.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit.registry import registry
from attnkit.selection import current_choice

Array = Any


class Foreign:
    """An array of a library that nobody knows, on any device; its elements cannot be read."""

    def __init__(self, *shape: int, dtype: str = "float32", cuda: int | None = 0) -> None:
        self.shape, self.dtype = shape or (1, 1, 1, 8), dtype
        self.ndim = len(self.shape)
        self._device = (1, 0) if cuda is None else (2, cuda)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __getitem__(self, index: object) -> Foreign:
        return self

    def __iter__(self) -> Any:
        raise AssertionError("read, although it should have been refused")


class World:
    """Good arguments, so that each call of a table is wrong in one thing."""

    foreign = Foreign

    def __init__(self) -> None:
        self.arrays = [ones(2, 4, 3, 8), ones(2, 2, 5, 8), ones(2, 2, 5, 6)]
        self.query, self.key, self.value = self.arrays
        self.token = ones(2, 2, 1, 8), ones(2, 2, 1, 6)
        config = ak.KVCacheConfig(num_layers=2, batch_size=2, num_kv_heads=2, head_dim=8, value_dim=6, max_length=8)
        self.cache = ak.make_cache(config, backend="numpy")
        for layer in self.cache:
            layer.append(self.key, self.value)

    def attend(self, **options: Any) -> Array:
        return ak.attention(*self.arrays, backend="numpy", **options)

    def refuses(self, name: str, call: Callable[[World], object], error: type[Exception], *parts: str) -> None:
        before = self.state()
        with pytest.raises(error) as caught:
            call(self)
        assert caught.type is error
        for part in parts:
            assert part in str(caught.value)
        assert self.state() == before

    def state(self) -> object:
        """Give all that a refused call must leave as it is."""
        held = [[array.tobytes() for array in layer.read()] for layer in self.cache]
        counters = [(layer.next_position.tolist(), layer.stored.tolist()) for layer in self.cache]
        choice = current_choice(None), os.environ.get("ATTNKIT_BACKEND")
        inputs = [(array.shape, array.dtype, array.tobytes()) for array in (*self.arrays, *self.token)]
        attended = self.cache[0].attend(self.query).tobytes()
        sizes = self.cache.capacity.tolist(), self.cache.nbytes
        return held, counters, sizes, attended, inputs, choice, registry.infos(), registry.generation


def ones(*shape: int, dtype: Any = np.float32) -> Array:
    return np.ones(shape, dtype)


@pytest.fixture
def world() -> World:
    return World()
