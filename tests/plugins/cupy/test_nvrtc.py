"""Kernels compiled by NVRTC on a machine that needs no GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from attnkit_cupy.cuda import nvrtc
from attnkit_cupy.folders import KERNELS
from attnkit_cupy.runtime import KernelError

pytest.importorskip("cupy", reason="NVRTC is called through CuPy")

SOURCE = """
template <int N> __global__ void scale(float* x) { x[threadIdx.x] *= N + OFFSET; }
"""
NAMES = ("scale<2>", "scale<3>")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return path


def test_a_cubin_is_a_whole_file_with_the_kernels_in_it(source: Path) -> None:
    cubin = nvrtc.compile_cubin(source, NAMES, "90", {"OFFSET": 4})
    assert cubin.data[:4] == b"\x7fELF"
    assert all(cubin.lowered[name].encode() in cubin.data for name in NAMES)
    sections, (size, count) = struct.unpack_from("<Q", cubin.data, 40)[0], struct.unpack_from("<HH", cubin.data, 58)
    programs, (entry, number) = struct.unpack_from("<Q", cubin.data, 32)[0], struct.unpack_from("<HH", cubin.data, 54)
    assert len(cubin.data) >= max(sections + size * count, programs + entry * number), "the last byte is missing"


def test_ptxas_tells_what_each_kernel_takes(source: Path) -> None:
    found = nvrtc.compile_cubin(source, NAMES, "80", {"OFFSET": 1}).resources
    assert set(found) == set(NAMES)
    for resources in found.values():
        assert 0 < resources.registers < 32
        assert resources[1:] == (0, 0, 0)


def test_a_stack_is_told(tmp_path: Path) -> None:
    source = tmp_path / "stack.cu"
    source.write_text(
        "__global__ void f(int* x) { int a[64]; for (int i = 0; i < 64; ++i) a[i] = x[i]; "
        "for (int i = 0; i < 64; ++i) x[i] = a[(x[i] + i) & 63]; }"
    )
    assert nvrtc.compile_cubin(source, ("f",), "90").resources["f"].stack == 256


def test_an_error_carries_the_log(source: Path) -> None:
    with pytest.raises(KernelError, match=r"scale.cu does not compile for sm_90(.|\n)*OFFSET"):
        nvrtc.compile_cubin(source, NAMES, "90")


def test_headers_of_cuda_and_of_the_kernels_are_found(tmp_path: Path) -> None:
    source = tmp_path / "port.cu"
    source.write_text('#include "port.cuh"\n__global__ void f(attn::f16* x) { x[0] = attn::from_float<attn::f16>(1); }')
    assert nvrtc.compile_cubin(source, ("f",), "75").data
    assert f"-I{KERNELS}" in nvrtc.options("75", folder=tmp_path)


def test_what_no_architecture_knows_is_refused(source: Path) -> None:
    assert {75, 80, 90} <= set(nvrtc.architectures())
    with pytest.raises(KernelError, match="sm_12"):
        nvrtc.compile_cubin(source, NAMES, "12", {"OFFSET": 1})


@pytest.mark.parametrize(
    ("major", "command"),
    [
        (12, "pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"),
        (13, "pip install 'nvidia-cuda-nvrtc==13.*' 'nvidia-cuda-runtime==13.*'"),
    ],
)
def test_missing_headers_are_told_with_the_command(monkeypatch: Any, major: int, command: str) -> None:
    monkeypatch.setattr(nvrtc, "_HEADER", "no_such_header.h")
    with pytest.raises(KernelError) as caught:
        nvrtc.headers(major)
    assert command in str(caught.value)


@pytest.mark.parametrize(("major", "inside"), [(12, "cuda_runtime/include"), (13, "cu13/include")])
def test_headers_of_both_kinds_of_packages_are_found(monkeypatch: Any, tmp_path: Path, major: int, inside: str) -> None:
    header = tmp_path / inside / "cuda_fp16.h"
    header.parent.mkdir(parents=True)
    header.touch()

    class Spec:
        submodule_search_locations = [str(tmp_path)]

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec())
    assert nvrtc.headers(major) == header.parent


def test_a_toolkit_is_found(monkeypatch: Any, tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert nvrtc.headers(13) == tmp_path / "include"


def test_a_missing_nvrtc_is_told_with_the_command(monkeypatch: Any, source: Path) -> None:
    def missing() -> tuple[int, int]:
        raise RuntimeError("no libnvrtc")

    monkeypatch.setattr("cupy.cuda.nvrtc.getVersion", missing)
    with pytest.raises(KernelError, match=r"NVRTC does not load.*pip install .*nvidia-cuda-nvrtc"):
        nvrtc.compile_cubin(source, NAMES, "90", {"OFFSET": 1})
