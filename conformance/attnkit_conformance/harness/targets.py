"""Target: how a backend under test is named on a command line, and made.

``NAME`` is a registered backend, ``NAME:PATH`` one path of it, and ``module:factory`` anything importable that gives a
``Backend`` when called without arguments, registered or not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import attnkit as ak
from attnkit_conformance.harness.local import Harness


class TargetError(ValueError):
    """A target names nothing that could be tested; the message says what there is."""


def open_target(target: str) -> Harness:
    """Make the backend that a target names, in this process.

    Raises
    ------
    TargetError
        If it names no backend that runs here, or no path of one.
    """
    sources = {info.name: info.source for info in ak.backends()}
    plain, _, rest = target.partition(":")
    if plain in sources:
        return _registered(plain, rest, sources[plain])
    if rest:
        return _made(plain, rest)
    raise TargetError(f"no backend named {target!r}; {available()}; or give module:factory")


def available() -> str:
    """Say which backends run here."""
    return f"available: {', '.join(info.name for info in ak.backends() if info.available) or 'none'}"


def _registered(name: str, path: str, source: str) -> Harness:
    target = f"{name}:{path}" if path else name
    try:
        backend = ak.get_backend(name)
    except ak.AttnkitError as error:
        raise TargetError(f"{target}: {error}; {available()}") from error
    if path and path not in backend.paths:
        raise TargetError(f"{target}: no such path; paths of {name}: {', '.join(backend.paths)}")
    return Harness(target, backend, source=source)


def _made(module: str, factory: str) -> Harness:
    target = f"{module}:{factory}"
    try:
        make: Any = getattr(import_module(module), factory)
        backend = make()
    except Exception as error:
        raise TargetError(f"{target}: {type(error).__name__}: {error}; {available()}") from error
    if not isinstance(backend, ak.Backend):
        raise TargetError(f"{target}: must give an attnkit.Backend, got {type(backend).__name__}")
    return Harness(target, backend, choice=backend, source=module)
