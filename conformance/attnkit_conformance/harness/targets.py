"""Target: how a backend under test is named on a command line, and made.

``NAME`` is a registered backend, ``NAME:PATH`` one path of it, ``module:factory`` anything importable that gives a
``Backend`` when called without arguments, registered or not, and ``cmd:COMMAND LINE`` a program of any language.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import array_api_compat
import numpy as np

import attnkit as ak
from attnkit.arrays import numpy_dtype
from attnkit_conformance.harness.local import Harness

COMMAND = "cmd:"


class TargetError(ValueError):
    """A target names nothing that could be tested; the message says what there is."""


class UnavailableError(TargetError):
    """A target, or the device that was asked for, cannot be had on this machine."""


def open_target(target: str, device: str = "") -> Harness:
    """Make the backend that a target names, in this process.

    Parameters
    ----------
    target
        ``NAME``, ``NAME:PATH`` or ``module:factory``.
    device
        Where its arrays are to lie, in the words of its array library; by default where its ``from_numpy`` puts them.

    Raises
    ------
    TargetError
        If it names no backend, or no path of one.
    UnavailableError
        If it, or the device, is not there.
    """
    harness = _opened(target)
    return _placed(harness, device) if device else harness


def _opened(target: str) -> Harness:
    sources = {info.name: info.source for info in ak.backends()}
    plain, _, rest = target.partition(":")
    if plain in sources:
        return _registered(plain, rest, sources[plain])
    if target.startswith(COMMAND):
        return _commanded(target)
    if rest:
        return _made(plain, rest)
    raise TargetError(f"no backend named {target!r}; {available()}; or give module:factory, or cmd:PROGRAM")


def available() -> str:
    """Say which backends run here."""
    return f"available: {', '.join(info.name for info in ak.backends() if info.available) or 'none'}"


def _placed(harness: Harness, device: str) -> Harness:
    placed = Harness(harness.name, harness.backend, harness.choice, harness.source, device)
    dtype = min(harness.backend.capabilities().dtypes)
    try:
        _make_default(device, placed.array(np.zeros(1, numpy_dtype(dtype))))
    except Exception as error:  # each library has its own for a device that is not there
        raise UnavailableError(f"{harness.name}: no device {device!r} here: {error}") from error
    return placed


def _make_default(device: str, array: object) -> None:
    """Tell a library that has a default device, as torch does, for the rest of this process: caches lie there too."""
    choose = getattr(array_api_compat.array_namespace(array), "set_default_device", None)
    if choose is not None:
        choose(device)


def _registered(name: str, path: str, source: str) -> Harness:
    target = f"{name}:{path}" if path else name
    try:
        backend = ak.get_backend(name)
    except ak.BackendUnavailableError as error:
        raise UnavailableError(f"{target}: {error}; {available()}") from error
    except ak.AttnkitError as error:
        raise TargetError(f"{target}: {error}; {available()}") from error
    if path and path not in backend.paths:
        raise TargetError(f"{target}: no such path; paths of {name}: {', '.join(backend.paths)}")
    return Harness(target, backend, source=source)


def _commanded(target: str) -> Harness:
    """Start a program; it is imported only now, since it is a backend of the suite's own."""
    from attnkit_conformance.command import CommandBackend, CommandFailureError

    try:
        backend = CommandBackend(target.removeprefix(COMMAND))
    except (CommandFailureError, ValueError) as error:
        raise TargetError(f"{target}: {error}") from error
    told = backend.hello
    source = " ".join(filter(None, (told.name, told.version, f"({told.language})" if told.language else "")))
    return Harness(target, backend, choice=backend, source=source)


def _made(module: str, factory: str) -> Harness:
    target = f"{module}:{factory}"
    try:
        make: Any = getattr(import_module(module), factory)
        backend = make()
    except ak.BackendUnavailableError as error:
        raise UnavailableError(f"{target}: {error}") from error
    except Exception as error:
        raise TargetError(f"{target}: {type(error).__name__}: {error}; {available()}") from error
    if not isinstance(backend, ak.Backend):
        raise TargetError(f"{target}: must give an attnkit.Backend, got {type(backend).__name__}")
    return Harness(target, backend, choice=backend, source=module)
