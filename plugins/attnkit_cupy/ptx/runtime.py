"""PtxRuntime: the kernels as NVRTC compiles them for a GPU, run by the interpreter of PTX.

Slow, and only for tests: it shows what the inline assembly does, which no other way without a GPU can.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from attnkit_cupy.cuda import nvrtc
from attnkit_cupy.folders import KERNELS
from attnkit_cupy.ptx.block import Block
from attnkit_cupy.ptx.memory import Memory
from attnkit_cupy.ptx.program import Program, parse
from attnkit_cupy.ptx.values import Lanes
from attnkit_cupy.runtime import DEFAULT_SHARED_BYTES, NO_DEFINES, Device

Array = np.ndarray[Any, Any]


class Remembering:
    """NumPy, whose new arrays become memory of a device: addresses elsewhere are out of bounds.

    Attributes
    ----------
    arrays
        Every array that was made, or named by ``remember``, in ascending order of time.
    """

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def remember(self, *arrays: Array) -> None:
        """Let kernels reach more arrays, which keep alive what they look into."""
        for array in arrays:
            whole = array
            while isinstance(whole.base, np.ndarray):
                whole = whole.base
            self.arrays.append(whole)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return self._remembering(found) if callable(found) and not isinstance(found, type) else found

    def _remembering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            if isinstance(result, np.ndarray):
                self.remember(result)
            return result

        return call


class PtxKernel:
    """A kernel's PTX; ``counts`` tells how often each instruction ran at the last launch."""

    def __init__(self, program: Program, memory: Remembering, *, eager: bool) -> None:
        self.max_dynamic_shared_size_bytes = DEFAULT_SHARED_BYTES
        self.counts: Counter[str] = Counter()
        self._program, self._memory, self._eager = program, memory, eager

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        """Run every block of the grid, one after the other."""
        self.counts = Counter()
        arrays = [(int(array.ctypes.data), _bytes(array)) for array in self._memory.arrays if array.nbytes]
        parameters = _packed(args)
        for special in _blocks((*grid, 1, 1)[:3], (*block, 1, 1)[:3]):
            running = Block(self._program, special, Memory(arrays, shared_mem, parameters), eager=self._eager)
            running.run()
            self.counts += running.counts


class PtxModule:
    """The kernels of one source."""

    def __init__(self, kernels: Mapping[str, PtxKernel]) -> None:
        self._kernels = kernels

    def get_function(self, name: str) -> PtxKernel:
        """Give a kernel, the same object each time."""
        return self._kernels[name]


class PtxRuntime:
    """Runs what NVRTC makes of the kernels for an architecture.

    Parameters
    ----------
    arch
        Compute capability times ten.
    eager
        Whether asynchronous copies land at once; otherwise as late as they may.
    """

    def __init__(self, arch: int, *, eager: bool = False) -> None:
        self.xp = Remembering()
        self.device = Device(arch, 132, 64 * 1024 if arch < 80 else 227 * 1024)
        self._eager = eager
        self._modules: dict[object, PtxModule] = {}
        self.place = "cpu"

    def on(self, array: Array) -> AbstractContextManager[Any]:
        """Do nothing, as there is one device."""
        del array
        return nullcontext()

    def module(self, source: str, names: Sequence[str], defines: Mapping[str, object] = NO_DEFINES) -> PtxModule:
        """Give kernels of a source."""
        key = source, tuple(names), tuple(defines.items())
        if key not in self._modules:
            programs = _programs(self.device.arch, *key)
            self._modules[key] = PtxModule(
                {name: PtxKernel(program, self.xp, eager=self._eager) for name, program in programs.items()}
            )
        return self._modules[key]


@cache
def _programs(
    arch: int, source: str, names: tuple[str, ...], defines: tuple[tuple[str, object], ...]
) -> dict[str, Program]:
    text, lowered = nvrtc.compile_ptx(KERNELS / source, names, str(arch), dict(defines))
    return {name: parse(text, lowered[name]) for name in names}


def _bytes(array: Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Give the bytes of a whole array, as it lies in memory."""
    low, high = np.lib.array_utils.byte_bounds(array)
    return np.asarray(_Window(low, high - low, array))


class _Window:
    """A stretch of memory as NumPy's array interface describes it."""

    def __init__(self, address: int, size: int, owner: Array) -> None:
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}
        self.owner = owner


def _packed(args: tuple[Any, ...]) -> bytes:
    """Lay arguments out as a kernel's parameters, each aligned to its size, or to 8 bytes at most."""
    packed = b""
    for arg in args:
        data = arg.tobytes()
        packed += bytes(-len(packed) % min(8, len(data))) + data
    return packed


def _blocks(grid: tuple[int, ...], block: tuple[int, ...]) -> Iterator[dict[str, Lanes]]:
    """Give the read-only registers of each block."""
    number = np.arange(block[0] * block[1] * block[2], dtype=np.uint32)
    threads = number % block[0], number // block[0] % block[1], number // (block[0] * block[1])
    for place in itertools.product(*map(range, reversed(grid))):
        values = {"tid": threads, "ctaid": place[::-1], "ntid": block, "nctaid": grid}
        yield {
            f"%{name}.{axis}": np.broadcast_to(np.asarray(value, np.uint32), number.shape)
            for name, axes in values.items()
            for axis, value in zip("xyz", axes, strict=True)
        }
