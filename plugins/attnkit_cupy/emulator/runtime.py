"""EmulatedRuntime: the kernels, run on a CPU, on NumPy's arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from attnkit_cupy.emulator.compiler import build
from attnkit_cupy.emulator.config import EmulatorConfig
from attnkit_cupy.emulator.library import KernelLibrary, Stats
from attnkit_cupy.folders import KERNELS
from attnkit_cupy.runtime import DEFAULT_SHARED_BYTES, NO_DEFINES, Device, LaunchError, check_shared

_MOST_BLOCKS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
_MOST_THREADS = (1024, 1024, 64)


class EmulatedKernel:
    """A kernel in a library of its own.

    Attributes
    ----------
    stats
        What its last launch did.
    """

    def __init__(self, name: str, library: KernelLibrary, device: Device) -> None:
        self.name = name
        self.stats: Stats | None = None
        self._library, self._device = library, device
        self._most_shared = DEFAULT_SHARED_BYTES

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The dynamic shared memory that a block may have."""
        return self._most_shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        check_shared(self.name, size, self._device)
        self._most_shared = size

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        """Run every block of the grid, and return when all have."""
        grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        try:
            _check_limits(grid, block, shared_mem, self._most_shared)
            self.stats = self._library.launch(grid, block, shared_mem, self._library.signature.pack(args))
        except LaunchError as error:
            launched = f"grid {grid}, block {block}, {shared_mem} bytes of shared memory"
            raise LaunchError(f"{self.name}: {error}\n  {launched}") from None


def _check_limits(grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int, most_shared: int) -> None:
    """Refuse what no device takes, and shared memory that the kernel was not told to take."""
    if not all(1 <= blocks <= most for blocks, most in zip(grid, _MOST_BLOCKS, strict=True)):
        raise LaunchError(f"a grid has 1 to {_MOST_BLOCKS} blocks")
    if not all(1 <= threads <= most for threads, most in zip(block, _MOST_THREADS, strict=True)):
        raise LaunchError(f"a block has 1 to {_MOST_THREADS} threads")
    if block[0] * block[1] * block[2] > _MOST_THREADS[0]:
        raise LaunchError(f"a block has at most {_MOST_THREADS[0]} threads")
    if not 0 <= shared_mem <= most_shared:
        raise LaunchError(f"{most_shared} bytes of shared memory are allowed: set max_dynamic_shared_size_bytes")


class EmulatedModule:
    """Kernels of one source, each built when it is first asked for."""

    def __init__(
        self, source: Path, names: Sequence[str], defines: Mapping[str, object], config: EmulatorConfig
    ) -> None:
        self._source, self._names, self._defines, self._config = source, names, defines, config
        self._kernels: dict[str, EmulatedKernel] = {}

    def get_function(self, name: str) -> EmulatedKernel:
        """Give a kernel, the same object each time."""
        if name not in self._kernels:
            self._kernels[name] = self._load(name)
        return self._kernels[name]

    def _load(self, name: str) -> EmulatedKernel:
        if name not in self._names:
            raise KeyError(f"{name!r} is not among the kernels that were asked for: {', '.join(self._names)}")
        library = build(self._source, name, self._defines, self._config.sanitizer)
        return EmulatedKernel(name, KernelLibrary(library, self._config), self._config.device)


class EmulatedRuntime:
    """Runs kernels on a CPU; everything is computed when a launch returns."""

    xp: Any = np

    def __init__(self, config: EmulatorConfig | None = None) -> None:
        self.config = config or EmulatorConfig()
        self._modules: dict[object, EmulatedModule] = {}

    @property
    def device(self) -> Device:
        """What is emulated."""
        return self.config.device

    @property
    def place(self) -> Hashable:
        """There is one."""
        return "cpu"

    def on(self, array: Any) -> AbstractContextManager[Any]:
        """Do nothing, as there is one device."""
        del array
        return nullcontext()

    def module(self, source: str, names: Sequence[str], defines: Mapping[str, object] = NO_DEFINES) -> EmulatedModule:
        """Give kernels of a source: a file name in ``kernels/``, or a path."""
        key = source, tuple(names), tuple(defines.items())
        found = self._modules.get(key)
        if found is None:
            found = self._modules[key] = EmulatedModule(KERNELS / source, key[1], defines, self.config)
        return found
