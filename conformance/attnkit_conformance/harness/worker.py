"""Worker: the backend's process. ``python -m attnkit_conformance.harness.worker TARGET [DEVICE]``, see ``wire``.

It answers on what was its standard output; whatever the backend prints there goes to standard error instead.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, BinaryIO, Final

import numpy as np

from attnkit_conformance.harness import wire
from attnkit_conformance.harness.failures import told
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.harness.targets import TargetError, open_target
from attnkit_conformance.reports.declared import declared

_HERE = {"allow", "close"}  # about the process, and not about the backend
METHODS: Final = frozenset(
    name for name, _ in inspect.getmembers(Harness, inspect.isfunction) if name[0] != "_" and name not in _HERE
)
"""What the judge may ask for."""
_PLAIN = (bool, int, float, str, np.generic)


class Worker:
    """Answers requests about one backend.

    Attributes
    ----------
    things
        What the judge refers to by number.
    """

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.things: dict[int, object] = {}
        self._numbers = count()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Give the answer to a request; never raises for what a backend does."""
        for number in request["released"]:
            del self.things[number]
        try:
            answer: dict[str, Any] = {"result": self._result(request["method"], request)}
        except Exception as error:  # a backend may raise anything
            answer = {"error": told(error)}
        return {"call": request["call"], "held": len(self.things), **answer}

    def _result(self, name: str, request: Mapping[str, Any]) -> object:
        if name not in METHODS:
            raise AttributeError(f"no method {name!r}; there are {', '.join(sorted(METHODS))}")
        method = getattr(self.harness, name)
        result = method(*self._meant(request["arguments"]), **self._meant(request["options"]))
        if name == "describe":
            return {**result._asdict(), "capabilities": declared(result.capabilities)}
        return result if _gives_numbers(method) else self._kept(result)

    def _meant(self, value: Any) -> Any:
        """Put the things themselves in the place of their numbers."""
        return wire.mapped(lambda leaf: self.things[leaf.number] if isinstance(leaf, wire.Reference) else leaf, value)

    def _kept(self, value: Any) -> Any:
        """Put numbers in the place of things, and keep these."""
        return wire.mapped(self._numbered, value)

    def _numbered(self, leaf: object) -> object:
        if leaf is None or isinstance(leaf, _PLAIN):
            return leaf
        number = next(self._numbers)
        self.things[number] = leaf
        return wire.Reference(number)


def serve(worker: Worker, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until there are no more."""
    while True:
        try:
            request = wire.read(source)
        except EOFError:
            return
        wire.write(sink, _packed(worker.answer(request)))


def main(target: str, device: str = "") -> None:
    """Open a target, and answer on the pipes that this process was started with."""
    source, sink = _pipes()
    try:
        worker = Worker(open_target(target, device))
    except TargetError as error:
        wire.write(sink, wire.pack({"call": wire.read(source)["call"], "held": 0, "error": told(error)}))
    else:
        serve(worker, source, sink)


def _packed(answer: dict[str, Any]) -> wire.Frame:
    try:
        return wire.pack(answer)
    except wire.WireError as error:
        return wire.pack({"call": answer["call"], "held": answer["held"], "error": told(error)})


def _pipes() -> tuple[BinaryIO, BinaryIO]:
    """Take standard input and output away from the backend, at the level of the system."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


def _gives_numbers(method: Callable[..., object]) -> bool:
    return "NumpyArray" in str(method.__annotations__["return"])


if __name__ == "__main__":
    main(*sys.argv[1:])
