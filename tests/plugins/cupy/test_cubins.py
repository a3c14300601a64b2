"""The cache of compiled kernels on disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from attnkit_cupy.cuda import cubins, nvrtc
from attnkit_cupy.runtime import KernelError

pytest.importorskip("cupy", reason="NVRTC is called through CuPy")

NAMES = ("twice",)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sources").mkdir()
    path = tmp_path / "sources" / "twice.cu"
    path.write_text("__global__ void twice(float* x) { x[threadIdx.x] *= 2; }")
    return path


@pytest.fixture
def compiled(monkeypatch: Any) -> list[str]:
    """Architectures that were compiled for."""
    calls: list[str] = []
    original = nvrtc.compile_cubin

    def compile_cubin(source: Path, names: Any, arch: str, defines: Any) -> Any:
        calls.append(arch)
        return original(source, names, arch, defines)

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    return calls


def test_a_kernel_is_compiled_once(source: Path, compiled: list[str], tmp_path: Path) -> None:
    first, second = cubins.cubin(source, NAMES, "90"), cubins.cubin(source, NAMES, "90")
    assert compiled == ["90"]
    assert first == second
    assert first.path.read_bytes()[:4] == b"\x7fELF"
    assert first.path.parent == tmp_path / "cache" / "kernels"
    assert first.resources["twice"].registers > 0


def test_whatever_a_kernel_depends_on_is_in_the_key(source: Path, compiled: list[str], monkeypatch: Any) -> None:
    cubins.cubin(source, NAMES, "90")
    cubins.cubin(source, NAMES, "80")
    cubins.cubin(source, NAMES, "80", {"A": 1})
    source.with_name("other.cuh").write_text("// a header that it may include")
    cubins.cubin(source, NAMES, "80", {"A": 1})
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 9))
    cubins.cubin(source, NAMES, "80", {"A": 1})
    assert compiled == ["90", "80", "80", "80", "80"]


@pytest.mark.parametrize("harm", ["cut", "alter", "delete", "empty"])
@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_what_is_harmed_is_built_again(source: Path, compiled: list[str], harm: str, suffix: str) -> None:
    found = cubins.cubin(source, NAMES, "90")
    (file,) = found.path.parent.glob(f"*{suffix}")
    data = file.read_bytes()
    if harm == "delete":
        file.unlink()
    else:
        file.write_bytes({"cut": data[:-1], "alter": b"x" + data[1:], "empty": b""}[harm])
    again = cubins.cubin(source, NAMES, "90")
    assert compiled == ["90", "90"]
    assert again.path.read_bytes()[:4] == b"\x7fELF"
    assert cubins.cubin(source, NAMES, "90") == again
    assert len(compiled) == 2


@pytest.mark.parametrize("text", ["[]", "{}", '{"sha256": 3}', '{"sha256": "../../x", "lowered": {}, "resources": {}}'])
def test_an_entry_that_says_something_else_is_built_again(source: Path, compiled: list[str], text: str) -> None:
    found = cubins.cubin(source, NAMES, "90")
    (entry,) = found.path.parent.glob("*.json")
    entry.write_text(text)
    assert cubins.cubin(source, NAMES, "90") == found
    assert len(compiled) == 2


def test_many_at_once_agree_and_leave_nothing_behind(source: Path) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(cubins.cubin(source, NAMES, "90"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(item == found[0] for item in found)
    assert {file.suffix for file in found[0].path.parent.iterdir()} == {".cubin", ".json"}
    assert not [file for file in found[0].path.parent.iterdir() if file.name.startswith(".")]


def test_a_folder_that_cannot_be_written_is_told(source: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(source))  # a file
    with pytest.raises(KernelError, match="set ATTNKIT_CACHE"):
        cubins.cubin(source, NAMES, "90")
