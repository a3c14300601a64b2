"""Each instruction that kernels use, wherever kernels run, against NumPy and the layouts of the PTX manual."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnkit_cupy.runtime import Runtime, ptr

ARRAYS = np.dtype([("input", "u8", (3,)), ("output", "u8"), ("count", "i8")])
SIXTEEN = {"attn::f16": np.float16, "attn::bf16": ml_dtypes.bfloat16}
LANES = np.arange(32)
GROUP, THREAD = LANES // 4, LANES % 4  # groupID and threadID_in_group of the PTX manual


def launch(
    runtime: Runtime, name: str, output: Any, *inputs: Any, threads: int = 32, blocks: int = 1, shared_mem: int = 0
) -> Any:
    """Run a kernel, and give what stands in ``output`` afterwards."""
    arrays = [runtime.xp.asarray(array) for array in inputs]
    result = runtime.xp.asarray(output)
    args = np.zeros(1, ARRAYS)
    args["input"][0, : len(arrays)] = [ptr(array) for array in arrays]
    args["output"], args["count"] = ptr(result), inputs[0].size if inputs else 0
    kernel = runtime.module("instructions.cu", [f"attn::{name}"]).get_function(f"attn::{name}")
    kernel((blocks,), (threads,), (args,), shared_mem=shared_mem)
    return result if isinstance(result, np.ndarray) else result.get()


def fragments(elements: Any, registers: int) -> Any:
    """Give 16-bit elements ``[lane, 2 * registers]`` as registers."""
    return np.ascontiguousarray(elements).view(np.uint32).reshape(32, registers)


def a_layout(i: int) -> tuple[Any, Any]:
    """Row and column of element i of each lane's fragment of A, for m16n8k16."""
    return GROUP + (0 if i in (0, 1, 4, 5) else 8), THREAD * 2 + (i & 1) + (0 if i < 4 else 8)


def b_layout(i: int) -> tuple[Any, Any]:
    return THREAD * 2 + (i & 1) + (0 if i < 2 else 8), GROUP


def c_layout(i: int) -> tuple[Any, Any]:
    return GROUP + (0 if i < 2 else 8), THREAD * 2 + (i & 1)


@pytest.mark.parametrize("name", SIXTEEN)
def test_mma(target: Runtime, name: str) -> None:
    if name == "attn::bf16" and target.device.arch < 80:
        pytest.skip("tensor cores take bfloat16 from sm_80 on")
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-8, 9, shape) for shape in ((16, 16), (16, 8), (16, 8)))  # sums are exact in any order
    inputs = [
        fragments(np.stack([a[a_layout(i)] for i in range(8)], axis=1).astype(SIXTEEN[name]), 4),
        fragments(np.stack([b[b_layout(i)] for i in range(4)], axis=1).astype(SIXTEEN[name]), 2),
        np.stack([c[c_layout(i)] for i in range(4)], axis=1).astype(np.float32),
    ]
    found = launch(target, f"run_mma<{name}>", np.full((32, 4), np.nan, np.float32), *inputs)
    expected = a @ b + c
    np.testing.assert_array_equal(found, np.stack([expected[c_layout(i)] for i in range(4)], axis=1))


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix(target: Runtime, trans: bool) -> None:
    matrices = np.random.default_rng(2).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    name = f"run_ldmatrix<{str(trans).lower()}>"
    found = launch(target, name, np.zeros((32, 4), np.uint32), matrices, shared_mem=512)
    rows, columns = GROUP[:, None], 2 * THREAD[:, None] + np.arange(2)
    expected = matrices.swapaxes(1, 2) if trans else matrices
    np.testing.assert_array_equal(found.view(np.uint16).reshape(32, 4, 2), expected[:, rows, columns].swapaxes(0, 1))


def test_cp_async(target: Runtime) -> None:
    threads = 96
    words = np.random.default_rng(3).integers(1, 2**32, (2, threads, 4)).astype(np.uint32)
    found = launch(target, "run_cp_async", np.zeros_like(words), words, threads=threads, shared_mem=32 * threads)
    copied = words.copy()
    copied[1, 1::2] = 0
    np.testing.assert_array_equal(found, np.roll(copied, -1, axis=1))


def test_bfloat16_before_sm_80_is_a_trap() -> None:
    ptx = pytest.importorskip("attnkit_cupy.ptx.runtime", reason="NVRTC is called through CuPy")
    zeros = [np.zeros((32, 4), np.uint32)] * 3
    with pytest.raises(Exception, match="trap"):
        launch(ptx.PtxRuntime(75), "run_mma<attn::bf16>", np.zeros((32, 4), np.float32), *zeros)


def test_shuffles(target: Runtime) -> None:
    found = launch(target, "run_shuffles", np.full((8, 32), -1, np.int32))
    within = LANES % 16
    expected = [
        LANES ^ 5,
        np.where((LANES ^ 12) // 8 > LANES // 8, LANES, LANES ^ 12),  # lanes of earlier groups may be read
        np.full(32, 9),
        LANES // 8 * 8 + 1,
        np.where(LANES < 29, LANES + 3, LANES),
        np.where(within < 13, LANES + 3, LANES),
        np.where(LANES >= 3, LANES - 3, LANES),
        np.where(within >= 3, LANES - 3, LANES),
    ]
    np.testing.assert_array_equal(found, expected)


def test_votes(target: Runtime) -> None:
    found = launch(target, "run_votes", np.full((4, 32), 7, np.uint32))
    votes = sum(1 << lane for lane in range(0, 32, 3))
    np.testing.assert_array_equal(found, np.repeat([[votes], [1], [0], [1]], 32, axis=1))


@pytest.mark.parametrize("name", SIXTEEN)
def test_narrowing_rounds_to_nearest_even(target: Runtime, name: str) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(SIXTEEN[name]).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    with np.errstate(over="ignore"):
        between = every[:-1] / 2 + every[1:] / 2
        beyond = np.float32([np.inf, -np.inf, 65519.99, 65520, 65536, 3.4e38, -3.4e38, 1e-45, 2.0**-25, 2.9e-8, -1e-40])
    near = [np.nextafter(between, np.float32(sign * np.inf)) for sign in (1, -1)]
    numbers = np.concatenate([every, between, *near, beyond]).astype(np.float32)
    numbers = numbers[:: max(1, len(numbers) // thorough(target))].copy()
    blocks = -(-len(numbers) // 256)
    output = np.zeros(len(numbers), np.uint32)
    found = launch(target, f"run_narrowing<{name}>", output, numbers, threads=256, blocks=blocks)
    with np.errstate(over="ignore"):
        expected = numbers.astype(SIXTEEN[name]).view(np.uint16)
    np.testing.assert_array_equal(found[:-1] & 0xFFFF, expected[:-1])
    np.testing.assert_array_equal(found[:-1] >> 16, expected[1:])


@pytest.mark.parametrize("name", SIXTEEN)
def test_narrowing_keeps_nan(target: Runtime, name: str) -> None:
    numbers = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    found = launch(target, f"run_narrowing<{name}>", np.zeros(4, np.uint32), numbers, threads=32)
    assert np.isnan(found[:3].astype(np.uint16).view(SIXTEEN[name]).astype(np.float32)).all()


@pytest.mark.parametrize("name", SIXTEEN)
def test_widening_is_exact(target: Runtime, name: str) -> None:
    numbers = np.arange(0, 2**16, max(1, 2**16 // thorough(target)), dtype=np.uint16).view(SIXTEEN[name])
    blocks = -(-len(numbers) // 256)
    output = np.zeros(len(numbers), np.float32)
    found = launch(target, f"run_widening<{name}>", output, numbers, threads=256, blocks=blocks)
    np.testing.assert_array_equal(found, numbers.astype(np.float32))  # NaN equals NaN here


def thorough(target: Runtime) -> int:
    """How many numbers to try: the interpreter of PTX is slow."""
    return 2**20 if getattr(target.xp, "__name__", "") in ("numpy", "cupy") else 2**8


def test_exp2(target: Runtime) -> None:
    numbers = np.linspace(-126, 10, 500).astype(np.float32)
    found = launch(target, "run_exp2", np.zeros(500, np.float32), numbers, threads=256, blocks=2)
    expected = np.exp2(numbers.astype(np.float64))
    assert np.abs(found / expected - 1).max() < 2**-22
    edges = np.array([-np.inf, -200, 0, 128, np.inf, np.nan, -130, -127], np.float32)
    found = launch(target, "run_exp2", np.full(8, -1, np.float32), edges)
    np.testing.assert_array_equal(found[:6], [0, 0, 1, np.inf, np.inf, np.nan])
    assert ((found[6:] >= 0) & (found[6:] < 2**-126)).all()  # flushed on a GPU


@pytest.mark.parametrize(("name", "threads"), [("run_barriers", 256), ("run_warp_barriers", 32)])
def test_barriers(target: Runtime, name: str, threads: int) -> None:
    output = np.full(threads, -1, np.int32)
    found = launch(target, name, output, threads=threads, shared_mem=4 * threads)
    np.testing.assert_array_equal(found, threads - 1 - np.arange(threads) + 3)


def test_atomics(target: Runtime) -> None:
    output = np.array([5, 0, -3], np.int32)
    found = launch(target, "run_atomics", output, threads=64, blocks=3, shared_mem=128)
    assert found[0] == 5 + 192
    assert found[1:2].view(np.float32) == 192
    assert found[2] == 191
