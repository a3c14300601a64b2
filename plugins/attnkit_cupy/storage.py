"""Storage of caches: tokens written into planes, and copied out of them, by kernels that never wait for the device.

Axes: ``B`` sequences, ``K`` key/value heads, ``N`` slots, ``T`` new tokens, ``n`` tokens, ``F`` features of a plane.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np

from attnkit_cupy.runtime import Array, Launch, Runtime

IntArray = np.ndarray[Any, np.dtype[np.int64]]

_SOURCE, _THREADS, _MOST_BLOCKS = "slots.cu", 256, 65535
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_MOVE = np.dtype(
    [("plane", np.int64, 2), ("tokens", np.int64, 4), ("batch", np.int32), ("count", np.int32), ("features", np.int32)],
    align=True,
)
_REMEMBERED = 32


def dtype_of(name: str) -> np.dtype[Any]:
    """Give the NumPy dtype of an element type of the contract, and of codes."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Mirrors:
    """Device mirrors of host integers.

    The slots of a step are the same array for keys and values of all layers, and so are sent once.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[IntArray, IntArray, Array]] = {}
        self._lock = Lock()

    def of(self, numbers: IntArray, runtime: Runtime) -> Array:
        """Give the mirror of an array in the place that launches go to now.

        It is sent again if the array's content has changed; neither host nor device waits.
        """
        key = id(numbers), runtime.place
        with self._lock:
            held = self._found.get(key)
            if held is not None and np.array_equal(held[1], numbers):
                return held[2]
            while len(self._found) >= _REMEMBERED:
                del self._found[next(iter(self._found))]
            kept = np.array(numbers, np.int64)
            mirror = runtime.xp.asarray(kept)
            self._found[key] = numbers, kept, mirror  # held, so that no other array gets its id
            return mirror


def write(runtime: Runtime, plane: Array, slots: Array, tokens: Array) -> None:
    """Store tokens ``[B, K, T, F]`` in slots ``[B, T]`` of ``[K, N, F]``; slots lie on the device.

    They are converted by value to the plane's element type; negative slots are skipped.
    """
    with np.errstate(all="ignore"):
        tokens = tokens.astype(plane.dtype, copy=False)
    _launch(runtime, "write_slots", plane, slots, tokens)


def gather(runtime: Runtime, plane: Array, slots: Array) -> Array:
    """Copy slots ``[B, n]``, on the device, of ``[K, N, F]`` out: ``[B, K, n, F]``, zeros for negative ones."""
    (batch, count), (heads, _, features) = slots.shape, plane.shape
    found = runtime.xp.empty((batch, heads, count, features), plane.dtype)
    _launch(runtime, "read_slots", plane, slots, found)
    return found


def _launch(runtime: Runtime, act: str, plane: Array, slots: Array, tokens: Array) -> None:
    """Move bits between a plane and tokens."""
    batch, heads, count, features = tokens.shape
    if not tokens.size:
        return
    name = f"attn::{act}<{_BITS[plane.dtype.itemsize]}>"
    move = np.zeros(1, _MOVE)
    move["plane"] = [stride // plane.itemsize for stride in plane.strides[:2]]
    move["tokens"] = [stride // tokens.itemsize for stride in tokens.strides]
    move["batch"], move["count"], move["features"] = batch, count, features
    grid = -(-count * features // _THREADS), heads, min(batch, _MOST_BLOCKS)
    Launch(grid, _THREADS).run(runtime, _SOURCE, name, plane, slots, tokens, move)
