"""Threads, memory and asynchronous copies of the interpreter; each fault is named."""

from __future__ import annotations

import numpy as np
import pytest

from attnkit_cupy.ptx.program import PtxError
from attnkit_cupy.ptx.runtime import PtxRuntime


def launch(kernel_of, body, *arrays, threads=64, shared=0, eager=False, kinds=None):
    runtime = PtxRuntime(80, eager=eager)
    runtime.xp.remember(*arrays)
    kernel = kernel_of(runtime, body, *(kinds or ["int"] * len(arrays)))
    kernel((1,), (threads,), tuple(np.uint64(array.ctypes.data) for array in arrays), shared_mem=shared)
    return kernel


def test_threads_go_their_own_ways_and_meet_again(kernel_of) -> None:
    found = np.zeros(64, np.int32)
    body = """
      int i = threadIdx.x, n = 0;
      for (int j = 0; j < i; j++) { if (j % 3 == 0) continue; if (j > 40) break; n += j % 5 ? j : -j; }
      if (i == 7) { p[i] = -1; return; }
      p[i] = n;
    """
    launch(kernel_of, body, found)

    def expected(i):
        n = 0
        for j in range(i):
            if j % 3 == 0:
                continue
            if j > 40:
                break
            n += j if j % 5 else -j
        return -1 if i == 7 else n

    assert found.tolist() == [expected(i) for i in range(64)]


def test_a_block_meets_at_barriers(kernel_of) -> None:
    found = np.zeros(64, np.int32)
    body = """
      Smem sm; int* s = sm.take<int>(64); int i = threadIdx.x;
      s[i] = i; __syncthreads(); int x = s[63 - i]; __syncthreads(); s[i] = x; __syncthreads(); p[i] = s[i] + s[i ^ 1];
    """
    launch(kernel_of, body, found, shared=256)
    assert found.tolist() == [63 - i + 63 - (i ^ 1) for i in range(64)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("p[threadIdx.x + 1] = 1;", "out of bounds by 4 bytes of an array of 256 bytes"),
        ("p[threadIdx.x - 1] = 1;", "lies before every array|out of bounds"),
        (
            "Smem sm; int* s = sm.take<int>(64); s[threadIdx.x + 1] = 1; __syncthreads(); p[0] = s[3];",
            "of shared memory",
        ),
        ("*(long long*)((char*)p + 4 * (threadIdx.x & 1)) = 1;", "misaligned: 8 bytes"),
        (
            "if (threadIdx.x < 3) { p[5] = 1; return; } __syncthreads(); p[0] = 1;",
            "wait at a barrier after some have left",
        ),
        (
            "if (threadIdx.x < 3) p[threadIdx.x] = __shfl_xor_sync(0xffffffffu, p[threadIdx.x + 8], 1);",
            "a part of a warp",
        ),
        ("__trap();", "trap"),
        ("__nanosleep(1); p[0] = 1;", "unknown instruction: nanosleep"),
    ],
)
def test_faults_are_named(kernel_of, body, message) -> None:
    with pytest.raises(PtxError, match=message):
        launch(kernel_of, body, np.zeros(64, np.int32), shared=256)


def test_shared_memory_is_nan_at_first(kernel_of) -> None:
    found = np.zeros(32, np.float32)
    launch(
        kernel_of,
        "Smem sm; float* s = sm.take<float>(32); p[threadIdx.x] = s[threadIdx.x];",
        found,
        threads=32,
        shared=128,
        kinds=["float"],
    )
    assert np.isnan(found).all()


COPY = """
  Smem sm; int* s = sm.take<int>(256); int i = threadIdx.x;
  cp_async16(s + 4 * i, p + 4 * i, i != 3); cp_async_commit();
  {wait} __syncthreads();
  q[i] = s[4 * i + 1];
"""


@pytest.mark.parametrize("eager", [False, True])
def test_copies_land_where_they_are_waited_for(kernel_of, eager) -> None:
    source, found = np.arange(256, dtype=np.int32), np.zeros(64, np.int32)
    launch(kernel_of, COPY.replace("{wait}", "cp_async_wait<0>();"), source, found, shared=1024, eager=eager)
    assert found.tolist() == [0 if i == 3 else 4 * i + 1 for i in range(64)]


@pytest.mark.parametrize("eager", [False, True])
def test_a_missing_wait_is_seen_where_copies_are_late(kernel_of, eager) -> None:
    source, found = np.arange(256, dtype=np.int32), np.zeros(64, np.int32)
    launch(kernel_of, COPY.replace("{wait}", ""), source, found, shared=1024, eager=eager)
    assert (found == -1).all() != eager


def test_threads_update_memory_one_after_the_other(kernel_of) -> None:
    found = np.zeros(66, np.int32)
    launch(
        kernel_of,
        "p[2 + threadIdx.x] = atomicAdd(p, 1); if (threadIdx.x % 2) atomicMax(p + 1, (int)threadIdx.x);",
        found,
    )
    assert found[:2].tolist() == [64, 63]
    assert sorted(found[2:].tolist()) == list(range(64))
