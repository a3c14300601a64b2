"""The torch plug-in: discovered through its entry point, imports no torch."""

from __future__ import annotations

from attnkit import Backend, BackendSpec, BackendUnavailableError, hookimpl

_REASON = "not built yet in this version of attnkit"


@hookimpl
def attnkit_register_backends() -> BackendSpec:
    """Give the torch backend."""
    return BackendSpec(
        name="torch",
        load=_load,
        owns=(("torch.Tensor", "*"),),
        available=_available,
        install_hint="pip install --upgrade 'attnkit[torch]'",
        summary="PyTorch tensors on CPU and CUDA.",
    )


def _available() -> str | None:
    return _REASON


def _load() -> Backend:
    raise BackendUnavailableError(_REASON)
