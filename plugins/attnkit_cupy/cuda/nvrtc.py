"""NVRTC, called by ourselves: cubins for any architecture, on machines without a GPU too, and what ptxas says of them.

CuPy would compile for the device at hand alone, and by flags of its own: with subnormal numbers flushed to zero, and
without the instructions of one architecture only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attnkit_cupy.folders import KERNELS
from attnkit_cupy.runtime import NO_DEFINES, KernelError

_HEADER = "cuda_fp16.h"
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


class Resources(NamedTuple):
    """What a thread of a kernel takes: registers, and bytes of local memory."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Cubin:
    """Compiled kernels.

    Attributes
    ----------
    data
        The ELF file.
    lowered
        C++ expression -> name in the file.
    resources
        C++ expression -> what a thread takes.
    """

    data: bytes
    lowered: Mapping[str, str]
    resources: Mapping[str, Resources]


def version() -> tuple[int, int]:
    """Give the version of NVRTC.

    Raises
    ------
    KernelError
        If there is none, with the command that installs it.
    """
    major, minor = _nvrtc().getVersion()
    return int(major), int(minor)


def architectures() -> list[int]:
    """Give the architectures that it compiles for, such as 90."""
    return [int(arch) for arch in _nvrtc().getSupportedArchs()]


def options(arch: str, defines: Mapping[str, object] = NO_DEFINES, folder: Path = KERNELS) -> tuple[str, ...]:
    """Give the options of a compilation for an architecture such as ``"90"``.

    Raises
    ------
    KernelError
        If CUDA's headers are not found, with the command that installs them.
    """
    includes = [folder, KERNELS] if folder != KERNELS else [KERNELS]
    return (
        f"-arch=sm_{arch}",
        "-std=c++17",
        "--ptxas-options=-v",
        "--ptxas-options=--register-usage-level=10",  # else ptxas spills in order to fit one block more
        *(f"-I{include}" for include in [*includes, headers(version()[0])]),
        *(f"-D{name}={value}" for name, value in defines.items()),
    )


def compile_cubin(source: Path, names: Sequence[str], arch: str, defines: Mapping[str, object] = NO_DEFINES) -> Cubin:
    """Compile kernels of a source.

    Parameters
    ----------
    source
        A ``.cu`` file; it includes headers beside it, those of the kernels, and CUDA's.
    names
        C++ expressions, such as ``"attn::flash_decode<float, 64>"``.
    arch
        The architecture: ``"75"``, ``"90a"``.
    defines
        Preprocessor macros.

    Raises
    ------
    KernelError
        If NVRTC or CUDA's headers are missing, or the source does not compile; the log is in the message.
    """
    with _compiled(source, names, arch, defines) as (nvrtc, program, lowered):
        # CuPy's getCUBIN leaves out the last byte, as if it ended a C string; it belongs to the file.
        data = bytes(nvrtc.getCUBIN(program)) + b"\0"
        return Cubin(data, lowered, _resources(nvrtc.getProgramLog(program), lowered))


def compile_ptx(
    source: Path, names: Sequence[str], arch: str, defines: Mapping[str, object] = NO_DEFINES
) -> tuple[str, Mapping[str, str]]:
    """Compile kernels as ``compile_cubin`` does, but to PTX: gives the text, and C++ expression -> name in it."""
    with _compiled(source, names, arch, defines) as (nvrtc, program, lowered):
        return bytes(nvrtc.getPTX(program)).decode(), lowered


@contextmanager
def _compiled(
    source: Path, names: Sequence[str], arch: str, defines: Mapping[str, object]
) -> Iterator[tuple[Any, Any, Mapping[str, str]]]:
    """Compile kernels; gives NVRTC, the program, and C++ expression -> name in it."""
    nvrtc, flags = _nvrtc(), options(arch, defines, source.parent)
    program = nvrtc.createProgram(source.read_text(), source.name, (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        try:
            nvrtc.compileProgram(program, flags)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise KernelError(f"{source.name} does not compile for sm_{arch}: {error}\n{log}") from None
        yield nvrtc, program, {name: str(nvrtc.getLoweredName(program, name)) for name in names}
    finally:
        nvrtc.destroyProgram(program)


def headers(major: int) -> Path:
    """Give the folder of CUDA's headers for a major version: of pip's packages, or of a toolkit.

    Raises
    ------
    KernelError
        If there is none, with the command that installs one.
    """
    for folder in _candidates(major):
        if (folder / _HEADER).is_file():
            return folder
    raise KernelError(f"{_HEADER} is not found: {install_hint(major)}, or set CUDA_PATH to a CUDA toolkit")


def install_hint(major: int) -> str:
    """Give the command that installs NVRTC and the headers."""
    if major < 13:
        return f"pip install nvidia-cuda-nvrtc-cu{major} nvidia-cuda-runtime-cu{major}"
    return f"pip install 'nvidia-cuda-nvrtc=={major}.*' 'nvidia-cuda-runtime=={major}.*'"


def _candidates(major: int) -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for root in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
        yield root / (f"cu{major}" if major >= 13 else "cuda_runtime") / "include"
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if variable in os.environ:
            yield Path(os.environ[variable]) / "include"
    yield Path(sys.prefix) / "targets" / "x86_64-linux" / "include"  # conda's packages
    yield Path(f"/usr/local/cuda-{major}") / "include"
    yield Path("/usr/local/cuda/include")
    yield Path("/usr/include")


def _nvrtc() -> Any:
    """Give CuPy's binding, once it has found the library."""
    import cupy
    from cupy.cuda import nvrtc

    try:
        nvrtc.getVersion()
    except Exception as error:  # which class depends on the version of CuPy
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        raise KernelError(f"NVRTC does not load ({type(error).__name__}): {install_hint(major)}") from error
    return nvrtc


def _resources(log: str, lowered: Mapping[str, str]) -> dict[str, Resources]:
    """Read what ptxas reports of each kernel; of the functions that it calls, if any, the most counts."""
    names = {mangled: name for name, mangled in lowered.items()}
    found = {name: Resources(0, 0, 0, 0) for name in lowered}
    current = ""
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            current = names.get(entry[1], "")
        if not current:
            continue
        if registers := _REGISTERS.search(line):
            found[current] = found[current]._replace(registers=int(registers[1]))
        if stack := _STACK.search(line):
            most = map(max, found[current][1:], map(int, stack.groups()))
            found[current] = Resources(found[current].registers, *most)
    return found
