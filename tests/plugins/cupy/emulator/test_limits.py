"""Launches that no device, or not this one, takes are refused; so are arguments that are not what a kernel declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnkit_cupy.emulator import EmulatedRuntime
from attnkit_cupy.emulator.marshal import marshal
from attnkit_cupy.runtime import Device, Kernel, LaunchError

Build = Callable[..., Kernel]
ARRAY = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        ((0,), (32,), "a grid has 1 to"),
        ((1, 65536), (32,), "a grid has 1 to"),
        ((1, 1, 65536), (32,), "a grid has 1 to"),
        ((2**31,), (32,), "a grid has 1 to"),
        ((1,), (0,), "a block has 1 to"),
        ((1,), (1025,), "a block has 1 to"),
        ((1,), (1, 1, 65), "a block has 1 to"),
        ((1,), (32, 33), "a block has at most 1024 threads"),
    ],
)
def test_grids_and_blocks(runtime: EmulatedRuntime, kernel_of: Build, grid: Any, block: Any, words: str) -> None:
    with pytest.raises(LaunchError, match=f"^kernel: {words}"):
        kernel_of(runtime, "")(grid, block, (ARRAY,))


def test_shared_memory_is_to_be_asked_for(runtime_of: Callable[..., EmulatedRuntime], kernel_of: Build) -> None:
    runtime = runtime_of(device=Device(86, 84, 99 * 1024))
    kernel = kernel_of(runtime, "")
    with pytest.raises(
        LaunchError, match="49152 bytes of shared memory are allowed: set max_dynamic_shared_size_bytes"
    ):
        kernel((1,), (32,), (ARRAY,), shared_mem=48 * 1024 + 1)
    with pytest.raises(LaunchError, match=r"101376 bytes .* \(sm_86\), not 101377; choose smaller tiles"):
        kernel.max_dynamic_shared_size_bytes = 99 * 1024 + 1
    kernel.max_dynamic_shared_size_bytes = 99 * 1024
    kernel((1,), (32,), (ARRAY,), shared_mem=99 * 1024)


def test_arguments_are_what_the_kernel_declares(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    kernel = kernel_of(runtime, "*p = i + x;", "float* p, int i, float x")
    kernel((1,), (1,), (ARRAY, np.int32(2), np.float32(0.5)))
    assert ARRAY[0] == 2.5
    for args, words in (
        ((ARRAY,), "takes 3 arguments, 1 given"),
        ((ARRAY, 2, np.float32(1)), "argument 1: expected an integer of 4 bytes, got an integer of 8 bytes"),
        ((ARRAY, np.int32(2), 0.5), "argument 2: expected a floating-point number of 4 bytes, got .* of 8 bytes"),
        ((np.int64(0), np.int32(2), np.float32(1)), "argument 0: expected an array of 8 bytes, got an integer of 8"),
        ((ARRAY, np.float32(2), np.float32(1)), "argument 1: expected an integer .* got a floating-point number"),
    ):
        with pytest.raises(LaunchError, match=words):
            kernel((1,), (1,), args)


def test_structs_go_by_value(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    pair = np.zeros(1, np.dtype([("x", "f4"), ("n", "i8")], align=True))
    pair["x"], pair["n"] = 0.5, 2**40
    struct = "struct Pair { float x; long long n; };"
    kernel = kernel_of(runtime, "p[0] = a.x; p[1] = float(a.n);", "float* p, Pair a", before=struct)
    for arg in (pair, pair[0]):
        ARRAY[:] = 0
        kernel((1,), (1,), (ARRAY, arg))
        np.testing.assert_array_equal(ARRAY[:2], [0.5, 2.0**40])
    with pytest.raises(LaunchError, match="argument 1: expected a struct of 16 bytes, got a struct of 12 bytes"):
        kernel((1,), (1,), (ARRAY, np.zeros(1, np.dtype("f4,i8"))))


def test_marshalling_follows_cupy() -> None:
    struct = np.zeros(1, [("a", "i4"), ("b", "f4")])
    assert marshal(None) == ("p", bytes(8))
    assert marshal(ARRAY) == ("p", int(ARRAY.ctypes.data).to_bytes(8, "little"))
    assert marshal(np.zeros(3, struct.dtype))[0] == "p"
    assert marshal(struct) == marshal(struct[0]) == ("s", bytes(8))
    assert marshal(3) == ("i", (3).to_bytes(8, "little"))
    assert marshal(True)[0] == "i"
    assert marshal(0.5) == ("f", np.float64(0.5).tobytes())
    assert marshal(np.uint8(7)) == ("i", b"\7")
    assert marshal(ml_dtypes.bfloat16(1)) == ("f", b"\x80\x3f")
    with pytest.raises(TypeError, match="not str"):
        marshal("text")


def test_arrays_of_a_device_go_by_their_pointer() -> None:
    class Memory:
        ptr = 4096

    class DeviceArray:
        data = Memory()

    assert marshal(DeviceArray()) == ("p", (4096).to_bytes(8, "little"))
