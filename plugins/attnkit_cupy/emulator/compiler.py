"""Builds kernels as shared libraries with the host's C++ compiler, and keeps them in the user's cache.

A library ends with the hash of what stands before it, so that one that is torn or altered is built again. It appears at
once or not at all: processes may build the same kernel at the same time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from attnkit_cupy.folders import ENVIRONMENT, KERNELS, cache_folder
from attnkit_cupy.runtime import NO_DEFINES, KernelError

HEADERS = Path(__file__).parent

_OPTIONS = (
    "-std=c++20",
    "-O2",
    "-g1",  # lines, for sanitizers
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",  # libraries of two kernels know nothing of each other
    "-fno-strict-aliasing",  # kernels look at the bits of 16-bit floats as nvcc lets them
    "-ffp-contract=off",  # the same results on machines with and without fused multiply-add
    "-Wno-unknown-pragmas",
)
_SANITIZING = ("-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")  # at -O2 they build for twice as long
_UNIT = """\
#include "{source}"

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT const cuda_cpu::KernelDesc cuda_cpu_kernel;
const cuda_cpu::KernelDesc cuda_cpu_kernel = cuda_cpu::Kernel<&{name}>::desc();
EXPORT cuda_cpu::Worker* cuda_cpu_new_worker() {{ return cuda_cpu::new_worker(); }}
EXPORT int cuda_cpu_launch(const cuda_cpu::LaunchConfig* config, const char* arguments, cuda_cpu::Worker** workers,
                           char* error, size_t error_bytes, cuda_cpu::Stats* stats) {{
  return cuda_cpu::launch(cuda_cpu_kernel, *config, arguments, workers, error, error_bytes, stats);
}}
"""
_PROBE = "#include <bit>\nstatic_assert(std::bit_cast<unsigned>(1.0f) == 0x3f800000u);\n"
_INCLUDE = re.compile(rb'^\s*#include\s+"([^"]+)"', re.MULTILINE)


class Compiler(NamedTuple):
    """A C++ compiler: how it is called, and what it says of its version."""

    command: tuple[str, ...]
    version: str


def available() -> str | None:
    """Give ``None`` where kernels can be built, else the reason in words."""
    if os.name != "posix":
        return "the emulator of CUDA needs a POSIX system, such as Linux or WSL"
    found = find_compiler()
    if found is None:
        return "there is no C++ compiler: neither g++ nor clang++ is on the path, and CXX names none"
    return _complaint(found)


@functools.cache
def _complaint(compiler: Compiler) -> str | None:
    """Ask a compiler whether it knows the C++20 that the emulator is written in."""
    command = [*compiler.command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=_PROBE, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    name = " ".join(compiler.command)
    return f"{name} ({compiler.version}) does not compile C++20: g++ 11 or clang++ 14 does; CXX may name one"


def find_compiler() -> Compiler | None:
    """Give the compiler that ``CXX`` names, by one word or several, else g++ or clang++, or ``None``."""
    named = shlex.split(os.environ.get("CXX", ""))
    for name, *words in [named] if named else [["g++"], ["clang++"]]:
        path = shutil.which(name)
        if path is not None:
            command = path, *words
            return Compiler(command, _version(command))
    return None


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    return next(iter(done.stdout.splitlines()), "unknown version")


def build(source: Path, name: str, defines: Mapping[str, object] = NO_DEFINES, sanitizer: str | None = None) -> Path:
    """Give the library of one kernel, built if the cache has none.

    Parameters
    ----------
    source
        A ``.cu`` file; it includes headers beside it, and those of the kernels.
    name
        A C++ expression, such as ``"attn::flash_decode<float, 64>"``.
    defines
        Preprocessor macros.
    sanitizer
        What ``-fsanitize=`` takes.

    Raises
    ------
    KernelError
        If there is no compiler, the source does not compile, or the cache cannot be written.
    """
    compiler = find_compiler()
    if compiler is None:
        raise KernelError(str(available()))
    unit = _UNIT.format(source=source.name, name=name)
    options = [*_OPTIONS, *(f"-D{key}={text}" for key, text in defines.items())]
    if sanitizer:
        options += [*_SANITIZING, f"-fsanitize={sanitizer}"]
    folders = list(dict.fromkeys((source.parent, KERNELS, HEADERS)))
    asked = repr((compiler, options, platform.machine())).encode()
    key = hashlib.sha256(b"\0".join([asked, unit.encode(), *_texts(source, folders)])).hexdigest()[:32]
    library = cache_folder() / f"{key}.so"
    if not _is_whole(library):
        try:
            _compile([*compiler.command, *options, *(f"-I{folder}" for folder in folders)], unit, library)
        except OSError as error:
            raise KernelError(f"{name} cannot be stored: {error}; set {ENVIRONMENT} to a folder") from error
    return library


def _texts(source: Path, folders: list[Path]) -> Iterator[bytes]:
    """Give the text of a source and of all that it includes from these folders."""
    pending, seen = [source], {source}
    while pending:
        text = pending.pop().read_bytes()
        yield text
        for include in _INCLUDE.findall(text):
            places = (folder / include.decode() for folder in folders)
            found = next((place for place in places if place.is_file()), None)
            if found is not None and found not in seen:
                seen.add(found)
                pending.append(found)


def _is_whole(library: Path) -> bool:
    try:
        data = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-32]).digest() == data[-32:]


def _compile(command: list[str], unit: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        text, built = Path(folder) / "unit.cpp", Path(folder) / "unit.so"
        text.write_text(unit)
        done = subprocess.run([*command, str(text), "-o", str(built)], capture_output=True, text=True)
        if done.returncode:
            raise KernelError(f"a kernel does not compile: {' '.join(command)}\n{unit}\n{done.stderr}")
        with built.open("ab") as file:
            file.write(hashlib.sha256(built.read_bytes()).digest())
        os.replace(built, library)
