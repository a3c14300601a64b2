"""CupyRuntime: the kernels, run on a GPU by CuPy, on its current device and stream."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import cupy

from attnkit_cupy.cuda.cubins import cubin
from attnkit_cupy.folders import KERNELS
from attnkit_cupy.runtime import DEFAULT_SHARED_BYTES, NO_DEFINES, Array, Device, KernelError, LaunchError, check_shared


class CupyKernel:
    """A kernel on one device."""

    def __init__(self, name: str, raw: Any, device: Device) -> None:
        self.name = name
        self._raw, self._device = raw, device
        self._most = DEFAULT_SHARED_BYTES

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The dynamic shared memory that a block may have; telling CUDA takes longer than remembering."""
        return self._most

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        if size == self._most:
            return
        check_shared(self.name, size, self._device)
        self._raw.max_dynamic_shared_size_bytes = size
        self._most = size

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        """Launch a grid of blocks on CuPy's current stream."""
        try:
            self._raw(grid, block, args, shared_mem=shared_mem)
        except cupy.cuda.driver.CUDADriverError as error:
            raise LaunchError(self._failure(error, grid, block, shared_mem)) from error

    def _failure(self, error: Exception, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> str:
        """Say what was launched, and what to try; the tile stands in the template arguments of the name."""
        return (
            f"{self.name} cannot be launched: {error}\n"
            f"  grid {grid}, block {block}, {shared_mem} bytes of shared memory of {self._most} asked for, "
            f"device sm_{self._device.arch} with {self._device.smem_optin} a block\n"
            f"  {_advice(str(error))}"
        )


def _advice(error: str) -> str:
    if "OUT_OF_RESOURCES" in error or "INVALID_VALUE" in error:
        return "try backend='cupy:dense', which takes no tiles, and report the shapes"
    if "NO_BINARY" in error or "INVALID_IMAGE" in error or "UNSUPPORTED" in error:
        return "the driver does not know this architecture or format: update it, or install CuPy for an older CUDA"
    return (
        "an earlier kernel may have failed: run with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to see which; "
        "the process must be started again"
    )


class CupyModule:
    """Kernels of one cubin, loaded on one device."""

    def __init__(self, raw: Any, lowered: Mapping[str, str], device: Device) -> None:
        self._raw, self._lowered, self._device = raw, lowered, device
        self._kernels: dict[str, CupyKernel] = {}

    def get_function(self, name: str) -> CupyKernel:
        """Give a kernel, the same object each time."""
        if name not in self._kernels:
            try:
                raw = self._raw.get_function(self._lowered[name])
            except cupy.cuda.driver.CUDADriverError as error:
                raise KernelError(f"{name} cannot be loaded: {error}; {_advice(str(error))}") from error
            self._kernels[name] = CupyKernel(name, raw, self._device)
        return self._kernels[name]


class CupyRuntime:
    """Runs kernels on CuPy's current device, on CuPy's arrays."""

    xp: Any = cupy

    def __init__(self) -> None:
        self._devices: dict[int, Device] = {}
        self._modules: dict[object, CupyModule] = {}

    @property
    def device(self) -> Device:
        """The current device."""
        return self._device(cupy.cuda.runtime.getDevice())

    @property
    def place(self) -> Hashable:
        """The current device and stream."""
        return cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr

    def on(self, array: Array) -> AbstractContextManager[Any]:
        """Make the device of an array the current one."""
        device: AbstractContextManager[Any] = array.device
        return device

    def module(self, source: str, names: Sequence[str], defines: Mapping[str, object] = NO_DEFINES) -> CupyModule:
        """Give kernels of a source for the current device: loaded, read from disk, or compiled."""
        number = cupy.cuda.runtime.getDevice()
        key = number, source, tuple(names), tuple(defines.items())
        found = self._modules.get(key)
        if found is None:
            device = self._device(number)
            built = cubin(KERNELS / source, names, str(device.arch), defines)
            found = CupyModule(cupy.RawModule(path=str(built.path)), built.lowered, device)
            self._modules[key] = found
        return found

    def _device(self, number: int) -> Device:
        if number not in self._devices:
            device = cupy.cuda.Device(number)
            facts = device.attributes
            self._devices[number] = Device(
                int(device.compute_capability), facts["MultiProcessorCount"], facts["MaxSharedMemoryPerBlockOptin"]
            )
        return self._devices[number]
