"""Threads change places the same way by a few instructions of the machine, and by the system's contexts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnkit_cupy.emulator import EmulatedRuntime

SOURCE = """#include "port.cuh"
__global__ void kernel(float* p) {
  attn::Smem shared;
  float* tile = shared.take<float>(128);
  float number = threadIdx.x / 7.0f;
  for (int round = 0; round < 5; round++) {
    tile[threadIdx.x] = number;
    __syncthreads();
    number = number * 0.9f + tile[127 - threadIdx.x] + __shfl_xor_sync(~0u, number, 3);
    __syncthreads();
  }
  p[threadIdx.x] = number;
}
"""


def test_the_fallback_does_the_same(runtime: EmulatedRuntime, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(SOURCE)
    found = np.zeros((2, 128), np.float32)
    for row, defines in zip(found, ({}, {"CUDA_CPU_UCONTEXT": 1}), strict=True):
        runtime.module(str(path), ["kernel"], defines).get_function("kernel")((3,), (128,), (row,), shared_mem=512)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[0], found[1])
