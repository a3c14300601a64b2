"""The CuPy plug-in: discovered through its entry point, loads CuPy, or the emulator, at the first use of a backend."""

from __future__ import annotations

from importlib.util import find_spec

from attnkit import Backend, BackendSpec, hookimpl


@hookimpl
def attnkit_register_backends() -> list[BackendSpec]:
    """Give the backend of CuPy, and the one that runs its kernels on a CPU."""
    return [
        BackendSpec(
            name="cupy",
            load=_load_cupy,
            owns=(("cupy.ndarray", "cuda"),),
            available=_cupy_unavailable,
            install_hint=_hint(),
            paths=("raw", "dense"),
            summary="CuPy arrays on CUDA: tiled kernels of its own, every option of the contract.",
        ),
        BackendSpec(
            name="cuda-emulated",
            load=_load_emulated,
            available=_emulator_unavailable,
            install_hint="apt-get install g++, or set CXX to a compiler that knows C++20",
            paths=("raw",),
            summary="The CUDA kernels, run on a CPU for whoever has no GPU: slow, and only by name.",
        ),
    ]


def _hint() -> str:
    """Give what installs CuPy, where that is what is missing; else the reason tells the remedy."""
    return "" if find_spec("cupy") else "pip install 'attnkit[cupy-cuda13]', or 'attnkit[cupy-cuda12]' for CUDA 12"


def _cupy_unavailable() -> str | None:
    from attnkit_cupy.availability import why_not

    return why_not()


def _emulator_unavailable() -> str | None:
    from attnkit_cupy.emulator.compiler import available

    return available()


def _load_cupy() -> Backend:
    try:
        import cupy  # noqa: F401  # first, so that a CuPy that is broken is told from a backend that is
    except Exception as error:
        raise ImportError(f"CuPy does not import: {type(error).__name__}: {error}") from error
    from attnkit_cupy.backend import CupyBackend

    return CupyBackend()


def _load_emulated() -> Backend:
    from attnkit_cupy.backend import EmulatedBackend

    return EmulatedBackend()
