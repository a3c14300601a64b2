"""The runtime of a GPU up to the launch: a real cubin and real CuPy arrays; the device and the loader are stand-ins."""

# ruff: noqa: E402  # imports follow the skip of those who lack the package

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnkit_cupy.runtime import KernelError, LaunchError

cupy = pytest.importorskip("cupy", reason="the runtime of a GPU is CuPy's")
from attnkit_cupy import storage
from attnkit_cupy.cuda.runtime import CupyRuntime

NAME = "attn::write_slots<unsigned short>"
FACTS = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232448}


class DriverError(RuntimeError):
    """CuPy's own cannot be made without a driver."""


class Raw:
    """A kernel that notes its launches, or fails."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.sizes: list[int] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "max_dynamic_shared_size_bytes":
            self.sizes.append(value)
        super().__setattr__(name, value)

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int) -> None:
        if self.machine.error:
            raise DriverError(self.machine.error)
        self.machine.launches.append((self.machine.current, grid, block, args, shared_mem))


class Machine:
    """Two devices, and what was loaded and launched on them."""

    def __init__(self) -> None:
        self.current = 0
        self.error = ""
        self.loaded: list[bytes] = []
        self.launches: list[Any] = []
        self.kernels: list[Raw] = []

    def device(self, number: int) -> Any:
        class Device:
            compute_capability = ("90", "80")[number]
            attributes = FACTS

        return Device()

    def module(self, *, path: str) -> Any:
        blob = Path(path).read_bytes()
        self.loaded.append(blob)
        machine = self

        class Module:
            def get_function(self, name: str) -> Raw:
                assert name.encode() in blob
                if machine.error:
                    raise DriverError(machine.error)
                machine.kernels.append(Raw(machine))
                return machine.kernels[-1]

        return Module()


@pytest.fixture
def machine(monkeypatch: Any) -> Machine:
    found = Machine()
    monkeypatch.setattr(cupy.cuda, "Device", found.device)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: found.current)
    monkeypatch.setattr(cupy.cuda.driver, "CUDADriverError", DriverError)
    monkeypatch.setattr(cupy, "RawModule", found.module)
    return found


def on_host(array: Any) -> Any:
    """Give a real CuPy array whose memory is that of a NumPy array."""
    memory = cupy.cuda.UnownedMemory(array.ctypes.data, array.nbytes, array, 0)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0), strides=array.strides)


def test_tokens_are_written_by_a_launch_with_their_addresses(machine: Machine) -> None:
    plane, tokens = on_host(np.zeros((2, 8, 3), np.float16)), on_host(np.ones((1, 2, 4, 3), np.float16))
    slots = on_host(np.arange(4)[None])
    storage.write(CupyRuntime(), plane, slots, tokens)
    ((device, grid, block, args, shared),) = machine.launches
    assert (device, grid, block, shared) == (0, (1, 2, 1), (256,), 0)
    assert [array.data.ptr for array in args[:3]] == [array.data.ptr for array in (plane, slots, tokens)]
    assert args[3]["plane"].tolist() == [[24, 3]]
    assert args[3]["tokens"].tolist() == [[24, 12, 3, 1]]


def test_a_kernel_is_loaded_once_for_each_device_and_built_for_it(machine: Machine) -> None:
    runtime = CupyRuntime()
    first = runtime.module("slots.cu", (NAME,)).get_function(NAME)
    assert runtime.module("slots.cu", (NAME,)).get_function(NAME) is first
    assert runtime.device.arch == 90
    machine.current = 1
    second = runtime.module("slots.cu", (NAME,)).get_function(NAME)
    assert runtime.device == (80, 132, 232448)
    assert second is not first
    assert len(machine.loaded) == 2
    assert machine.loaded[0] != machine.loaded[1]


def test_launches_go_to_the_current_device_and_stream(machine: Machine, monkeypatch: Any) -> None:
    runtime, array = CupyRuntime(), on_host(np.zeros(1))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: cupy.cuda.Stream.null)
    first = runtime.place
    machine.current = 1
    assert runtime.place != first
    assert runtime.on(array) == array.device


def test_shared_memory_is_asked_for_once(machine: Machine) -> None:
    kernel = CupyRuntime().module("slots.cu", (NAME,)).get_function(NAME)
    assert kernel.max_dynamic_shared_size_bytes == 48 * 1024
    for _ in range(3):
        kernel.max_dynamic_shared_size_bytes = 100_000
    assert machine.kernels[0].sizes == [100_000]
    with pytest.raises(LaunchError, match=r"may have 232448 bytes of .* this device .sm_90., not 300000"):
        kernel.max_dynamic_shared_size_bytes = 300_000


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("CUDA_ERROR_INVALID_VALUE: invalid argument", "try backend='cupy:dense'"),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many", "try backend='cupy:dense'"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal", "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_a_failed_launch_tells_what_was_launched_and_what_to_try(machine: Machine, error: str, advice: str) -> None:
    kernel = CupyRuntime().module("slots.cu", (NAME,)).get_function(NAME)
    machine.error = error
    with pytest.raises(LaunchError) as caught:
        kernel((3, 2), (128,), (), shared_mem=512)
    for part in (NAME, error, "grid (3, 2)", "block (128,)", "512 bytes", "sm_90", advice):
        assert part in str(caught.value)


def test_a_cubin_that_the_driver_does_not_know_is_told(machine: Machine) -> None:
    machine.error = "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image"
    with pytest.raises(KernelError, match=r"cannot be loaded: .*update it, or install CuPy for an older CUDA"):
        CupyRuntime().module("slots.cu", (NAME,)).get_function(NAME)
