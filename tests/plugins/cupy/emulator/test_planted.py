"""A test of the tests: defects planted in the kernels are caught by hostile schedules and NaN in shared memory."""

from __future__ import annotations

from types import ModuleType

import pytest

SIMT, STREAM, DECODE = "flash_forward_simt.cu", "mma_stream.cuh", "flash_decode.cu"
BARRIER, WAIT, WARP = "__syncthreads();", "cp_async_wait<1>();", "__syncwarp();"
STREAM_BARRIER = "    sync_threads<THREADS>();"
EARLY = f"""    if (at + step < span.last)
      load_keys<DP, BN, THREADS>(tiles.v + (stage ^ TILE), p, values, rows.b, at + step, span.last, thread);
    {WAIT}"""

# What each kernel runs on: few rows for decoding, and more keys than a tile of each of its warps.
CALLS = {
    "simt": {"dtype": "float32"},
    "mma": {"dtype": "bfloat16", "head_dim": 64},
    "decode": {"dtype": "float32", "queries": 1, "keys": 300, "head_dim": 64},
}
DEFECTS = {
    "simt: values are still read when keys overwrite them": ("simt", [(SIMT, BARRIER, "", 0)]),
    "simt: keys are read before they are there": ("simt", [(SIMT, BARRIER, "", 1)]),
    "simt: keys are still read when values overwrite them": ("simt", [(SIMT, BARRIER, "", 2)]),
    "simt: values are read before they are there": ("simt", [(SIMT, BARRIER, "", 3)]),
    "simt: weights are read before they are there": ("simt", [(SIMT, WARP, "", 0)]),
    "simt: one warp passes a barrier by": ("simt", [(SIMT, BARRIER, f"if (threadIdx.x >= 32) {BARRIER}", 1)]),
    "mma: no barrier before keys are read": ("mma", [(STREAM, STREAM_BARRIER, "", 0)]),
    "mma: no barrier before values are read": ("mma", [(STREAM, STREAM_BARRIER, "", 1)]),
    "mma: keys are not waited for": ("mma", [(STREAM, WAIT, "cp_async_wait<2>();", 0)]),
    "mma: values are not waited for": ("mma", [(STREAM, WAIT, "cp_async_wait<2>();", 1)]),
    "mma: values are fetched while those before are read": ("mma", [(STREAM, f"    {WAIT}", EARLY, 0)]),
    "decode: keys are not waited for": ("decode", [(DECODE, WAIT, "cp_async_wait<2>();", 0)]),
    "decode: maxima are read before they are known": ("decode", [(DECODE, BARRIER, "", 1)]),
}


@pytest.mark.parametrize("kernel", CALLS)
@pytest.mark.parametrize(("copies", "seed"), [("mixed", 1), ("lazy", 2), ("eager", 3)])
def test_a_correct_kernel_is_right_under_every_schedule(
    program: ModuleType, kernel: str, copies: str, seed: int
) -> None:
    plan = program.Plan(kernel, **CALLS[kernel], config={"copies": copies, "seed": seed})
    status, text = program.attend(plan)
    assert status == program.FINE, text


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_caught(program: ModuleType, defect: str) -> None:
    kernel, edits = DEFECTS[defect]
    told = []
    for seed in range(3):
        plan = program.Plan(kernel, **CALLS[kernel], edits=edits, config={"seed": seed})
        status, text = program.attend(plan)
        told.append(text)
        if status != program.FINE:
            assert status == program.WRONG or "divergence" in text or "did not wait" in text, text
            return
    pytest.fail(f"not seen under three schedules: {told}")
