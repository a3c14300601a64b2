"""What tests of the emulator share: small kernels of their own, and the kernels with edits in their source."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from attnkit_cupy.emulator.compiler import find_compiler
from attnkit_cupy.runtime import Kernel, Runtime

HEADER = '#include "port.cuh"\nusing namespace attn;\n'
PROGRAM = Path(__file__).parent / "attend.py"
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so", "undefined": "libubsan.so"}


@pytest.fixture
def kernel_of(tmp_path: Path) -> Callable[..., Kernel]:
    """Build ``kernel(parameters)`` of a body, which begins on line 3 of its file."""
    numbers = itertools.count()

    def build(runtime: Runtime, body: str, parameters: str = "float* p", before: str = "") -> Kernel:
        path = tmp_path / str(next(numbers)) / "kernel.cu"
        path.parent.mkdir()
        path.write_text(f"{HEADER}{before}__global__ void kernel({parameters}) {{ {body} }}\n")
        return runtime.module(str(path), ("kernel",)).get_function("kernel")

    return build


@pytest.fixture(scope="session")
def program() -> ModuleType:
    """Give ``attend.py``, which under importlib mode tests cannot import."""
    spec = importlib.util.spec_from_file_location("attend", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attend"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_under() -> Callable[..., tuple[int, str]]:
    """Run a program in a process of its own under a sanitizer; give its exit status and all that it printed."""

    def run(sanitizer: str, program: Path, *arguments: str) -> tuple[int, str]:
        compiler = find_compiler()
        assert compiler is not None
        command = [*compiler.command, f"-print-file-name={LIBRARIES[sanitizer]}"]
        library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        environment = {
            **os.environ,
            "LD_PRELOAD": library,
            "ASAN_OPTIONS": "detect_leaks=0:redzone=512",  # a row too far may jump over less
            "TSAN_OPTIONS": "exitcode=66",
            "OPENBLAS_NUM_THREADS": "1",  # its threads are not instrumented
        }
        command = [sys.executable, str(program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout + done.stderr

    return run
