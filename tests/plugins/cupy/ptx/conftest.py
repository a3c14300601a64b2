"""What tests of the interpreter share: small kernels of their own, compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cupy", reason="NVRTC is called through CuPy")

from attnkit_cupy.ptx.runtime import PtxRuntime  # after CuPy was found

HEADER = '#include "port.cuh"\nusing namespace attn;\n'


@pytest.fixture
def kernel_of(tmp_path: Path) -> Callable[..., Any]:
    """Give a function that builds the body of ``kernel(p, q)`` for a runtime; both are arrays of the types given."""

    def build(runtime: PtxRuntime, body: str, *types: str, template: str = "") -> Any:
        path = tmp_path / "kernel.cu"
        parameters = ", ".join(f"{kind}* {name}" for kind, name in zip(types, "pqrs", strict=False))
        path.write_text(f"{HEADER}{template}\n__global__ void kernel({parameters}) {{ {body} }}\n")
        return runtime.module(str(path), ("kernel",)).get_function("kernel")

    return build
