"""How the emulator runs blocks: orders that depend on the seed alone, fresh shared memory, workers, statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnkit_cupy.emulator import EmulatedRuntime
from attnkit_cupy.runtime import Kernel

Build = Callable[..., Kernel]
RuntimeOf = Callable[..., EmulatedRuntime]

ORDER = "__syncthreads();\n__syncthreads();\np[threadIdx.x] = atomicAdd(q, 1);"  # who comes when after a barrier


def order_of(runtime: EmulatedRuntime, kernel_of: Build) -> list[int]:
    places, count = np.zeros(96, np.int32), np.zeros(1, np.int32)
    kernel_of(runtime, ORDER, "int* p, int* q")((1,), (96,), (places, count))
    assert sorted(places) == list(range(96))
    return list(places)


def test_the_order_depends_on_schedule_and_seed_alone(runtime_of: RuntimeOf, kernel_of: Build) -> None:
    orders = [
        order_of(runtime_of(schedule=schedule, seed=seed), kernel_of)
        for schedule in ("greedy", "random", "priority")
        for seed in (5, 6, 5)
    ]
    for one in range(0, 9, 3):
        assert orders[one] == orders[one + 2]
    assert orders[0] == orders[1]  # greedy: the seed has nothing to say
    assert orders[3] != orders[4]
    assert orders[6] != orders[7]


def test_shared_memory_is_nan_in_every_block(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    body = """Smem shared; float* s = shared.take<float>(64) + threadIdx.x;
      p[64 * blockIdx.x + threadIdx.x] = *s; *s = 1;"""
    found = np.zeros(256, np.float32)
    kernel_of(runtime, body)((4,), (64,), (found,), shared_mem=256)
    assert np.isnan(found).all()


@pytest.mark.parametrize(("copies", "expected"), [("lazy", np.nan), ("eager", 3.0)])
def test_copies_land_when_they_are_told_to(
    runtime_of: RuntimeOf, kernel_of: Build, copies: str, expected: float
) -> None:
    body = """Smem shared; float* s = shared.take<float>(4);
      cp_async16(s, p, true); cp_async_commit(); p[4] = s[0]; cp_async_wait<0>(); p[5] = s[0];"""
    found = np.full(8, 3, np.float32)
    kernel_of(runtime_of(copies=copies), body)((1,), (1,), (found,), shared_mem=128)
    np.testing.assert_array_equal(found[4:6], [expected, 3])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_block_runs_once(runtime_of: RuntimeOf, kernel_of: Build, workers: int) -> None:
    counts = np.zeros((3, 2, 4), np.int32)
    body = "atomicAdd(p + (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x, 1);"
    kernel = kernel_of(runtime_of(workers=workers), body, "int* p")
    kernel((4, 2, 3), (8, 4), (counts,))
    assert (counts == 32).all()
    assert kernel.stats.blocks == 24


def test_threads_have_their_place_in_the_block(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    body = """int i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      p[i] = 100 * threadIdx.x + 10 * threadIdx.y + threadIdx.z;"""
    found = np.zeros((4, 3, 5), np.int32)
    kernel_of(runtime, body, "int* p")((1,), (5, 3, 4), (found,))
    z, y, x = np.indices(found.shape)
    np.testing.assert_array_equal(found, 100 * x + 10 * y + z)


def test_a_block_has_up_to_1024_threads(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    found = np.zeros(1024, np.float32)
    kernel_of(runtime, "__syncthreads();\np[threadIdx.x] = threadIdx.x;")((1,), (1024,), (found,))
    np.testing.assert_array_equal(found, np.arange(1024))


def test_launches_from_several_threads_do_not_meet(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    kernel = kernel_of(runtime, "for (int i = 0; i < 50; i++) { __syncthreads(); p[threadIdx.x] += 1; }")
    arrays = [np.zeros(64, np.float32) for _ in range(4)]

    def run(array: Any) -> None:
        for _ in range(20):
            kernel((1,), (64,), (array,))

    threads = [threading.Thread(target=run, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((array == 1000).all() for array in arrays)


def test_subnormal_numbers_are_kept_whatever_the_host_does(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    torch = pytest.importorskip("torch", reason="it alone can tell the processor to flush them")
    found = np.array([2.0**-130, 0], np.float32)
    kernel = kernel_of(runtime, "p[1] = p[0] * 0.5f;")
    torch.set_flush_denormal(True)
    try:
        kernel((1,), (1,), (found,))
    finally:
        torch.set_flush_denormal(False)
    assert found[1] == np.float32(2.0**-131)


def test_statistics_count_what_a_launch_did(runtime: EmulatedRuntime, kernel_of: Build) -> None:
    body = """Smem shared; u16* s = shared.take<u16>(512); u32 r[4]; int lane = threadIdx.x % 32;
      cp_async16(s + 8 * threadIdx.x, p, true); cp_async_commit(); cp_async_wait<0>(); __syncthreads();
      ldmatrix_x4(r, s + 8 * lane); ldmatrix_x4(r, s + lane / 8 * 8);
      float c[4] = {}; mma_16816<f16>(c, r, r[0], r[1]);"""
    kernel = kernel_of(runtime, body)
    kernel((2,), (64,), (np.zeros(4, np.float32),), shared_mem=1024)
    stats = kernel.stats
    assert (stats.blocks, stats.barriers, stats.mma, stats.ldmatrix, stats.cp_async) == (2, 2, 4, 8, 128)
    assert stats.ldmatrix_conflicts == 4 * 4 * 7  # rows of a matrix that are one and the same
    assert stats.smem_bytes == 1024
