"""The NumPy plug-in: discovered through its entry point, loads the backend at its first use."""

from __future__ import annotations

from attnkit import Backend, BackendSpec, hookimpl


@hookimpl
def attnkit_register_backends() -> BackendSpec:
    """Give the NumPy backend."""
    return BackendSpec(
        name="numpy",
        load=_load,
        owns=(("numpy.ndarray", "cpu"),),
        paths=("tiled", "decode", "dense"),
        summary="NumPy arrays on the CPU: tiled prefill, grouped decoding, every option of the contract.",
    )


def _load() -> Backend:
    from attnkit_numpy.backend import NumpyBackend

    return NumpyBackend()
