"""The torch plug-in: discovered through its entry point, loads torch and the backend at its first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from attnkit import AttentionOutput, Backend, BackendSpec, hookimpl

_OLDEST = (2, 5)  # the first with enable_gqa, flex_attention and a bfloat16 path that accumulates in float32


@hookimpl
def attnkit_register_backends() -> BackendSpec:
    """Give the torch backend."""
    return BackendSpec(
        name="torch",
        load=_load,
        owns=(("torch.Tensor", "*"),),
        available=_available,
        install_hint="pip install 'attnkit[torch]'",
        intercept=_load_intercept,
        paths=("sdpa", "tiled", "decode", "flex", "dense"),
        summary="PyTorch tensors on CPU and accelerators: fused kernels, every option of the contract, gradients.",
    )


def _available() -> str | None:
    if find_spec("torch") is None:
        return "torch is not installed"
    found = _version()
    if found is not None and found < _OLDEST:
        return f"torch {'.'.join(map(str, found))} is installed, 2.5 or newer is needed"
    return None


@cache  # the metadata of a large package takes long to read
def _version() -> tuple[int, int] | None:
    """Give major and minor version of torch from its metadata; ``None`` for a build that has none."""
    try:
        major, minor, *_ = version("torch").split(".")
        return int(major), int(minor)
    except (PackageNotFoundError, ValueError):
        return None


def _load() -> Backend:
    try:
        import torch  # noqa: F401  # first, so that a torch that is broken is told from a backend that is
    except Exception as error:
        raise ImportError(f"torch does not import: {type(error).__name__}: {error}") from error
    from attnkit_torch.backend import TorchBackend

    return TorchBackend()


def _load_intercept() -> Callable[..., AttentionOutput | None]:
    from attnkit_torch.transforms.intercept import intercept

    return intercept
