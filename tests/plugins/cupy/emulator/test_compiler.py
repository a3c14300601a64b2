"""Building kernels: what is kept, what is built again, and what is said where nothing can be built."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attnkit_cupy.emulator import EmulatedRuntime, EmulatorConfig, compiler
from attnkit_cupy.emulator.compiler import available, build, find_compiler
from attnkit_cupy.runtime import KernelError

SOURCE = '#include "port.cuh"\n#include "value.cuh"\n__global__ void kernel(int* p) { *p = VALUE; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a source with a header of its own, and a cache that is empty."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "value.cuh").write_text("#ifndef VALUE\n#define VALUE 1\n#endif\n")
    (tmp_path / "kernel.cu").write_text(SOURCE)
    return tmp_path / "kernel.cu"


def libraries(source: Path) -> list[Path]:
    return sorted((source.parent / "cache" / "kernels").iterdir())


def test_a_kernel_is_built_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(source, "kernel")
    assert libraries(source) == [built]
    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("built again"))
    assert build(source, "kernel") == built


def test_what_a_build_depends_on_is_in_its_name(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_compile", lambda command, unit, library: None)
    names = [build(source, "kernel"), build(source, "other"), build(source, "kernel", {"VALUE": 2})]
    names.append(build(source, "kernel", sanitizer="address"))
    (source.parent / "value.cuh").write_text("#define VALUE 3\n")
    names.append(build(source, "kernel"))
    monkeypatch.setattr(compiler, "find_compiler", lambda: compiler.Compiler(("/usr/bin/other++",), "other 1.0"))
    names.append(build(source, "kernel"))
    assert len(set(names)) == len(names)


def test_an_unrelated_source_changes_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_compile", lambda command, unit, library: None)
    before = build(source, "kernel")
    (source.parent / "unrelated.cuh").write_text("#define OTHER\n")
    assert build(source, "kernel") == before


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: data[:2000], lambda data: b""])
def test_a_library_that_is_torn_is_built_again(source: Path, damage) -> None:
    built = build(source, "kernel")
    data = built.read_bytes()
    built.write_bytes(damage(data))
    assert build(source, "kernel") == built
    assert len(built.read_bytes()) == len(data)


def test_two_at_once_are_fine(source: Path) -> None:
    program = "import sys; from pathlib import Path; from attnkit_cupy.emulator.compiler import build\n"
    program += "print(build(Path(sys.argv[1]), 'kernel'))"

    def run(_: int) -> str:
        command = [sys.executable, "-c", program, str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor() as pool:
        assert len(set(pool.map(run, range(2)))) == 1
    assert len(libraries(source)) == 1


def test_a_source_that_does_not_compile_is_shown(source: Path) -> None:
    source.write_text(SOURCE.replace("VALUE", "unknown_word"))
    with pytest.raises(KernelError, match=r"(?s)does not compile: .*kernel.cu:3:.*unknown_word.* was not declared"):
        build(source, "kernel")
    assert libraries(source) == []


def test_a_cache_that_cannot_be_written_is_told(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(source))  # a file
    with pytest.raises(KernelError, match=r"kernel cannot be stored: .*; set ATTNKIT_CACHE to a folder"):
        build(source, "kernel")


def test_a_module_gives_what_it_was_asked_for(source: Path) -> None:
    module = EmulatedRuntime(EmulatorConfig(workers=1)).module(str(source), ["kernel"])
    assert module.get_function("kernel") is module.get_function("kernel")
    with pytest.raises(KeyError, match="'other' is not among the kernels that were asked for: kernel"):
        module.get_function("other")


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_compiler()
    assert found is not None
    assert available() is None
    monkeypatch.setenv("CXX", found.command[0])
    assert find_compiler() == found
    monkeypatch.setenv("CXX", f"env {found.command[0]} -m64")
    wrapped = find_compiler()
    assert wrapped is not None
    assert wrapped.command[1:] == (found.command[0], "-m64")
    assert wrapped.version == found.version
    assert available() is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_compiler() is None
    assert "there is no C++ compiler" in str(available())


def test_without_a_compiler_nothing_is_built(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelError, match=r"there is no C\+\+ compiler.*CXX names none"):
        build(source, "kernel")


def test_a_compiler_that_is_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old++"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo old 4.8 && exit 0\nexit 1\n')
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    assert available() == f"{old} (old 4.8) does not compile C++20: g++ 11 or clang++ 14 does; CXX may name one"
