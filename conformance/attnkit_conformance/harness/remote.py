"""RemoteHarness: a backend in a process of its own, asked through a pipe.

Only what a call takes goes over, and only what it gives comes back, as bytes: the backend never sees what the suite
expects of it, and nothing that comes from it is run here. It may crash or hang; the suite goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from queue import Empty
from typing import Any, Final

from attnkit_conformance.harness import wire
from attnkit_conformance.harness.failures import BackendDied, BackendGone, BackendHung, raised
from attnkit_conformance.harness.local import Description, Harness
from attnkit_conformance.harness.process import Process, python
from attnkit_conformance.harness.targets import TargetError
from attnkit_conformance.harness.worker import METHODS
from attnkit_conformance.reports.declared import capabilities_of

START: Final = 300.0
"""Seconds that a backend may take to be opened; some compile their kernels then."""


class RemoteHarness(Harness):
    """A backend in a process of its own, with the methods of ``Harness``.

    Parameters
    ----------
    target
        ``NAME``, ``NAME:PATH`` or ``module:factory``.
    device
        See ``harness.targets.open_target``.
    start
        Seconds that it may take to be opened.

    Attributes
    ----------
    held
        How many things the backend's process kept at the last answer.

    Raises
    ------
    TargetError
        If the target names nothing that could be tested.
    BackendGone
        If its process ends, or hangs, while the backend is opened.
    """

    is_remote = True

    def __init__(self, target: str, device: str = "", *, start: float = START) -> None:
        self.name, self.device = target, device
        self.held = 0
        self._limit = self._left = start
        self._call = 0
        self._released: deque[int] = deque()
        self._process = Process(python(f"{__package__}.worker", target, device), self._handle)
        try:
            self._description = self._opened()
        except BaseException:
            self.close()
            raise

    def describe(self) -> Description:
        """Say what is under test."""
        return self._description

    def _opened(self) -> Description:
        try:
            plain = self._ask("describe", (), {})
            return Description(**{**plain, "capabilities": capabilities_of(plain["capabilities"])})
        except (TargetError, BackendGone):
            raise
        except Exception as error:  # what it declares may be anything
            raise TargetError(f"{self.name}: it does not say what it can do: {error}") from error

    def allow(self, seconds: float) -> None:
        """Give the backend so much time from now on, all calls together; the time of the suite does not count."""
        self._limit = self._left = seconds

    def close(self) -> None:
        """End the backend's process."""
        if self.gone is None:
            self.gone = BackendDied("its process was ended by the suite")
            self._process.end()

    def _ask(self, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call a method of the backend's harness."""
        if self.gone is not None:
            raise self.gone
        self._call += 1
        given = {"arguments": self._owned(list(arguments)), "options": self._owned(options)}
        released = [self._released.popleft() for _ in range(len(self._released))]
        frame = wire.pack({"call": self._call, "method": method, "released": released, **given})
        answer = self._answer(frame)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, frame: wire.Frame) -> Any:
        """Give what the backend gave, or the error that it raised."""
        started = time.perf_counter()
        try:
            return self._understood(self._process.ask(frame, self._left))
        except Empty:
            self.gone = BackendHung(f"no answer within {self._limit:g} s, all calls together{self._ended(0)}")
        except (EOFError, OSError):
            self.gone = BackendDied(f"its process ended{self._ended()}")
        except (LookupError, TypeError, ValueError) as error:
            self.gone = BackendDied(f"its process sent what is no answer: {error}{self._ended(0)}")
        finally:
            self._left -= time.perf_counter() - started
        raise self.gone

    def _understood(self, answer: Any) -> Any:
        if answer["call"] != self._call:
            raise wire.WireError(f"an answer to call {answer['call']}, asked was call {self._call}")
        self.held = int(answer["held"])
        return raised(answer["error"]) if "error" in answer else answer["result"]

    def _ended(self, *grace: float) -> str:
        """End the process, and tell how that went."""
        fate = self._process.end(*grace)
        lines = self._process.printed()
        return f" ({fate})" + (f"; the last that it printed:\n{lines}" if lines else "")

    def _handle(self, number: int) -> _Handle:
        return _Handle(number, self._released)

    def _owned(self, value: Any) -> Any:
        """Give arguments as they are, if all things among them live in this very process."""

        def checked(leaf: Any) -> Any:
            if isinstance(leaf, wire.Reference) and getattr(leaf, "released", None) is not self._released:
                raise ValueError(f"thing {leaf.number} lives in another process")
            return leaf

        return wire.mapped(checked, value)


@dataclass(frozen=True, eq=False)
class _Handle(wire.Reference):
    """A thing as the suite holds it; once nobody does, the backend's process is told so with the next request."""

    released: deque[int]

    def __del__(self) -> None:
        self.released.append(self.number)


def _forwarded(name: str) -> Callable[..., Any]:
    @wraps(getattr(Harness, name))
    def method(self: RemoteHarness, *arguments: Any, **options: Any) -> Any:
        return self._ask(name, arguments, options)

    return method


for _name in METHODS - set(vars(RemoteHarness)):
    setattr(RemoteHarness, _name, _forwarded(_name))
