"""The attention kernels as NVRTC compiles them for a GPU, inline assembly included, against the oracle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_cupy import raw
from attnkit_cupy.folders import KERNELS
from attnkit_cupy.ptx import runtime as ptx_runtime
from attnkit_cupy.ptx.program import PtxError
from attnkit_cupy.ptx.runtime import PtxRuntime

TENSOR_CORES = {"float32": "strict-fp32", "float16": "fa-16+truncating", "bfloat16": "fa-16+truncating"}
WHOLE = ("simt", "mma", "decode")
CAUSAL = ak.Mask.causal()


def attend(calls: Any, case: Any, arch: int, kernel: str, *, eager: bool = False) -> ak.AttentionOutput:
    runtime = PtxRuntime(arch, eager=eager)
    runtime.xp.remember(*case.arrays, *(value for value in case.options.values() if isinstance(value, np.ndarray)))
    return calls.attend(runtime, case, kernel)


@pytest.mark.parametrize(
    ("kernel", "arch", "dtype"),
    [
        ("simt", 75, "float32"),
        ("simt", 90, "bfloat16"),
        ("mma", 75, "float16"),
        ("mma", 80, "bfloat16"),
        ("mma", 90, "float16"),
        ("decode", 80, "float32"),
        ("decode", 80, "bfloat16"),
        ("decode", 90, "float16"),
    ],
)
def test_a_kernel(calls: Any, kernel: str, arch: int, dtype: str) -> None:
    rows = 2 if kernel == "decode" else 19
    case = calls.draw(1, (1, 4, 2, rows, 70, 24, 20), dtype, mask=CAUSAL, sinks=np.array([1.0, -np.inf, 0, 3]))
    calls.check(case, attend(calls, case, arch, kernel), TENSOR_CORES)


@pytest.mark.parametrize("kernel", WHOLE)
def test_every_option(calls: Any, kernel: str) -> None:
    rng = np.random.default_rng(2)
    rows = 1 if kernel == "decode" else 9
    mask = CAUSAL & ak.Mask.window(20) & ak.Mask.dense(rng.random((1, 2, 1, 40)) < 0.8)
    bias = rng.standard_normal((1, 1, rows, 40)).astype(np.float32)
    options = {"mask": mask, "softcap": 3.0, "bias": bias, "alibi": np.array([0.5, 0.1], np.float32)}
    dtype = "float16" if kernel == "mma" else "float32"
    case = calls.draw(3, (1, 2, 1, rows, 40, 16, 16), dtype, **options)
    calls.check(case, attend(calls, case, 80, kernel), TENSOR_CORES)


@pytest.mark.parametrize("eager", [False, True])
def test_copies_may_land_late_or_early(calls: Any, eager: bool) -> None:
    case = calls.draw(4, (1, 1, 1, 20, 200, 64, 64), "bfloat16")
    calls.check(case, attend(calls, case, 80, "mma", eager=eager), TENSOR_CORES)


def test_a_row_of_nan_is_mended(calls: Any) -> None:
    case = calls.draw(5, (1, 1, 1, 3, 20, 16, 16), "float32", mask=CAUSAL)
    case.arrays[2][:, :, 18:] = np.nan  # only the last rows see them
    found = attend(calls, case, 80, "simt")
    assert np.isfinite(found.output[0, 0, 0]).all()
    assert np.isnan(found.output[0, 0, 1:]).all()
    calm = case.holding(*case.arrays[:2], np.nan_to_num(case.arrays[2]))
    np.testing.assert_array_equal(found.output[0, 0, 0], attend(calls, calm, 80, "simt").output[0, 0, 0])


@pytest.fixture
def spoilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that replaces text in a copy of the kernels, which are used from then on."""

    def spoil(file: str, old: str, new: str) -> None:
        folder = tmp_path / "kernels"
        shutil.copytree(KERNELS, folder)
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        monkeypatch.setattr(ptx_runtime, "KERNELS", folder)
        monkeypatch.setattr(ptx_runtime, "_programs", ptx_runtime._programs.__wrapped__)  # which remembers nothing
        monkeypatch.setattr("attnkit_cupy.cuda.nvrtc.KERNELS", folder)

    return spoil


def test_swapped_operands_of_inline_assembly_are_noticed(calls: Any, spoilt: Any) -> None:
    """The emulator cannot see this: it has no inline assembly."""
    case = calls.draw(6, (1, 1, 1, 16, 64, 64, 64), "bfloat16")
    spoilt("port.cuh", "{%8,%9}", "{%9,%8}")
    with pytest.raises(AssertionError):
        calls.check(case, attend(calls, case, 80, "mma"), TENSOR_CORES)


def test_reads_beyond_an_array_are_noticed(calls: Any, spoilt: Any) -> None:
    case = calls.draw(7, (1, 1, 1, 16, 33, 64, 64), "float32")
    spoilt("masks.cuh", "s.keys = clamp(", "s.keys = 64 + 0 * clamp(")
    with pytest.raises(PtxError, match="out of bounds"):
        attend(calls, case, 80, "simt")


def test_every_kernel_was_run() -> None:
    assert set(WHOLE) == set(raw.KERNELS)
