"""Capturing launches and replaying them, as a CUDA graph does: no host code runs again, and addresses stay."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from attnkit_cupy.emulator.runtime import EmulatedKernel, EmulatedRuntime
from attnkit_cupy.runtime import NO_DEFINES, Array, Device


class Graph:
    """Launches in order, and the arrays that were made for them, which stay where they are."""

    def __init__(self) -> None:
        self._launches: list[Callable[[], None]] = []
        self._arrays: list[Array] = []

    def __len__(self) -> int:
        return len(self._launches)

    def add(self, launch: Callable[[], None]) -> None:
        """Add a launch."""
        self._launches.append(launch)

    def keep(self, array: Array) -> Array:
        """Keep an array in its place."""
        self._arrays.append(array)
        return array

    def launch(self) -> None:
        """Run every launch again."""
        for launch in self._launches:
            launch()


class CapturingRuntime:
    """An emulated runtime whose launches can be captured.

    As on a stream that is captured, nothing is computed meanwhile; what NumPy computes, however, is not captured.
    """

    def __init__(self, runtime: EmulatedRuntime) -> None:
        self.runtime = runtime
        self.xp = _Library(self)
        self.graph: Graph | None = None

    @property
    def device(self) -> Device:
        """What is emulated."""
        return self.runtime.device

    @property
    def place(self) -> Hashable:
        """There is one."""
        return self.runtime.place

    def on(self, array: Array) -> AbstractContextManager[Any]:
        """Do nothing, as there is one device."""
        return self.runtime.on(array)

    def module(self, source: str, names: Sequence[str], defines: Mapping[str, object] = NO_DEFINES) -> _CapturingModule:
        """Give kernels of a source."""
        return _CapturingModule(self, self.runtime.module(source, names, defines))

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Collect launches in place of running them."""
        self.graph = graph = Graph()
        try:
            yield graph
        finally:
            self.graph = None


class _Library:
    """NumPy, whose new arrays belong to the graph that is captured."""

    def __init__(self, runtime: CapturingRuntime) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> Array:
        array = np.empty(shape, dtype)
        graph = self._runtime.graph
        return array if graph is None else graph.keep(array)


class _CapturingModule:
    def __init__(self, runtime: CapturingRuntime, module: Any) -> None:
        self._runtime, self._module = runtime, module

    def get_function(self, name: str) -> _CapturingKernel:
        return _CapturingKernel(self._runtime, self._module.get_function(name))


class _CapturingKernel:
    def __init__(self, runtime: CapturingRuntime, kernel: EmulatedKernel) -> None:
        self._runtime, self._kernel = runtime, kernel

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._kernel.max_dynamic_shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self._kernel.max_dynamic_shared_size_bytes = size

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        graph = self._runtime.graph
        if graph is None:
            self._kernel(grid, block, args, shared_mem=shared_mem)
            return
        most = self.max_dynamic_shared_size_bytes

        def launch() -> None:
            self._kernel.max_dynamic_shared_size_bytes = most
            self._kernel(grid, block, args, shared_mem=shared_mem)

        graph.add(launch)
