"""The CuPy plug-in: discovered through its entry point, imports no CuPy."""

from __future__ import annotations

from attnkit import Backend, BackendSpec, BackendUnavailableError, hookimpl

_REASON = "not built yet in this version of attnkit"


@hookimpl
def attnkit_register_backends() -> BackendSpec:
    """Give the CuPy backend."""
    return BackendSpec(
        name="cupy",
        load=_load,
        owns=(("cupy.ndarray", "cuda"),),
        available=_available,
        install_hint="pip install --upgrade 'attnkit[cupy-cuda12]'",
        summary="CuPy arrays on CUDA, by kernels of its own.",
    )


def _available() -> str | None:
    return _REASON


def _load() -> Backend:
    raise BackendUnavailableError(_REASON)
