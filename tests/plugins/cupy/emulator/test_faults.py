"""What a GPU leaves silent, or hangs on, the emulator reports: where, and who was waiting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnkit_cupy.emulator import EmulatedRuntime
from attnkit_cupy.runtime import Kernel, LaunchError

Build = Callable[..., Kernel]

# The body of each kernel begins on line 3; what is said depends on who comes first.
FAULTS = {
    "barriers of different lines": (
        "if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads();",
        r"barrier divergence: thread \d+ is at __syncthreads line \d while \d+ wait at line \d",
    ),
    "a barrier that a thread never comes to": (
        "if (threadIdx.x == 40) return;\n__syncthreads();",
        r"barrier divergence: .*(exits while|threads exited)",
    ),
    "barriers that wait for each other": (
        "if (threadIdx.x < 16) __syncwarp();\nelse __syncthreads();",
        r"deadlock \(0 of 64 threads exited\).*(16 wait at __syncwarp line 3.*48 wait at __syncthreads line 4|48.*16)",
    ),
    "a warp that the others have left": (
        "if (threadIdx.x >= 16) return;\n__syncwarp();",
        r"deadlock \(48 of 64 threads exited\); 16 wait at __syncwarp line 4|names lanes that exited",
    ),
    "shuffles of different lines": (
        "if (threadIdx.x % 2) __shfl_xor_sync(~0u, 1, 1);\nelse __shfl_xor_sync(~0u, 1, 1);",
        r"warp divergence: lane \d+ is at __shfl_xor_sync line \d, other lanes at __shfl_xor_sync line \d",
    ),
    "different instructions": (
        "if (threadIdx.x % 2) __syncwarp();\nelse __ballot_sync(~0u, 1);",
        r"warp divergence: lane \d+ is at __",
    ),
    "a mask without the lane": ("__syncwarp(1);", r"__syncwarp line 3: lane \d+ is not in its own mask 0x00000001"),
    "masks that overlap": (
        "if (threadIdx.x % 32 < 16) __syncwarp(0xffff);\nelse __syncwarp(0xffff8000u);",
        r"mask 0x\w+ overlaps the mask 0x\w+|names lanes that exited",
    ),
    "a shuffle from outside of its mask": (
        "if (threadIdx.x % 32 < 16) __shfl_sync(0xffff, 1, 20);",
        r"__shfl_sync line 3: lane 0 reads lane 20, which is not in the mask",
    ),
    "a trap": ("__trap();", r"__trap\(\)"),
    "more shared memory than there is": (
        "Smem shared;\nshared.take<float>(100);",
        r"line 4 takes up to byte 512 of shared memory, the launch gave 256",
    ),
    "a misaligned copy": (
        "Smem shared;\ncp_async16(shared.take<float>(64) + 1, p, true);",
        r"cp.async of 16 bytes: misaligned address",
    ),
    "a misaligned ldmatrix": (
        "Smem shared;\nu32 r[4];\nldmatrix_x4(r, shared.take<float>(64) + 1);",
        r"ldmatrix line 5: address \w+ is not a multiple of 16",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported(any_schedule: EmulatedRuntime, kernel_of: Build, fault: str) -> None:
    body, words = FAULTS[fault]
    kernel = kernel_of(any_schedule, body)
    with pytest.raises(LaunchError, match=rf"(?s)^kernel: .*({words})"):
        kernel((2,), (64,), (np.zeros(64, np.float32),), shared_mem=256)


def test_it_is_told_which_thread_of_which_block(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    kernel = kernel_of(runtime, "if (blockIdx.y == 1 && blockIdx.z == 2 && threadIdx.y == 1) __trap();")
    with pytest.raises(
        LaunchError, match=r"\[block \(\d, 1, 2\), thread \(\d, 1, 0\)\]\n  grid \(3, 2, 4\), block \(8, 2, 1\)"
    ):
        kernel((3, 2, 4), (8, 2), (np.zeros(1, np.float32),))


def test_lanes_that_do_not_exist_are_no_part_of_a_mask(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    kernel = kernel_of(runtime, "__syncwarp();")
    with pytest.raises(LaunchError, match=r"mask 0xffffffff names lanes that exited or do not exist \(0x0000ffff do\)"):
        kernel((1,), (16,), (np.zeros(1, np.float32),))


def test_a_copy_is_to_be_waited_for(runtime_of: Callable[..., EmulatedRuntime], kernel_of: Build) -> None:
    body = "Smem shared; cp_async16(shared.take<float>(4), p, true); cp_async_commit();"
    kernel = kernel_of(runtime_of(copies="lazy"), body)
    with pytest.raises(LaunchError, match="a thread exits with 1 asynchronous copies that it did not wait for"):
        kernel((1,), (1,), (np.zeros(4, np.float32),), shared_mem=128)


def test_a_launch_works_after_one_that_failed(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    kernel = kernel_of(
        runtime, "if (*p == 1) { if (threadIdx.x) __syncthreads(); return; }\n__syncthreads(); p[threadIdx.x] = 7;"
    )
    array = np.ones(64, np.float32)
    with pytest.raises(LaunchError, match="barrier divergence"):
        kernel((1,), (64,), (array,))
    array[:] = 0
    kernel((1,), (64,), (array,))
    assert (array == 7).all()
