"""Memory as a kernel sees it: global arrays, shared memory and parameters, every access checked.

Axes: ``N`` threads of the block, ``n`` bytes of an access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnkit_cupy.ptx.program import PtxError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Addresses = np.ndarray[Any, np.dtype[np.int64]]


class Memory:
    """What a block can reach.

    Parameters
    ----------
    arrays
        ``(address, bytes)`` of the global arrays.
    shared
        Bytes of shared memory; each is 0xff at first, which is NaN in every float type.
    parameters
        The arguments of the launch.
    """

    def __init__(self, arrays: Sequence[tuple[int, Bytes]], shared: int, parameters: bytes) -> None:
        self._arrays = sorted(arrays, key=lambda item: item[0])
        self._starts = np.array([address for address, _ in self._arrays], np.int64)
        self._near = {"shared": np.full(shared, 0xFF, np.uint8), "param": np.frombuffer(parameters, np.uint8)}

    def load(self, space: str, at: Addresses, size: int, what: str) -> Bytes:
        """Give ``[m, n]`` bytes from addresses ``[m]``."""
        found = np.empty((len(at), size), np.uint8)
        for array, inside, lanes in self._places(space, at, size, what):
            found[lanes] = array[inside[:, None] + np.arange(size)]
        return found

    def store(self, space: str, at: Addresses, data: Bytes, what: str) -> None:
        """Write ``[m, n]`` bytes to addresses ``[m]``."""
        size = data.shape[1]
        for array, inside, lanes in self._places(space, at, size, what):
            array[inside[:, None] + np.arange(size)] = data[lanes]

    def _places(self, space: str, at: Addresses, size: int, what: str) -> list[tuple[Bytes, Addresses, Any]]:
        """Give for each array that is reached its bytes, where in it, and by which of the addresses."""
        if (at % size).any():
            raise PtxError(f"misaligned: {size} bytes at {int(at[at % size != 0][0]):#x} in {what}")
        if space != "global":
            array = self._near[space]
            self._check(at, size, len(array), f"{space} memory", what)
            return [(array, at, slice(None))]
        owners = np.searchsorted(self._starts, at, side="right") - 1
        return [self._global(int(owner), at, owners == owner, size, what) for owner in np.unique(owners)]

    def _global(self, owner: int, at: Addresses, lanes: Any, size: int, what: str) -> tuple[Bytes, Addresses, Any]:
        if owner < 0:
            raise PtxError(f"address {int(at[lanes][0]):#x} lies before every array in {what}")
        start, array = self._arrays[owner]
        inside = at[lanes] - start
        self._check(inside, size, len(array), f"an array of {len(array)} bytes", what)
        return array, inside, lanes

    @staticmethod
    def _check(inside: Addresses, size: int, end: int, where: str, what: str) -> None:
        beyond = max(int((inside + size).max(initial=0)) - end, int((-inside).max(initial=0)))
        if beyond > 0:
            raise PtxError(f"out of bounds by {beyond} bytes of {where} in {what}")
