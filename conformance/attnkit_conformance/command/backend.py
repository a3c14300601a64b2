"""CommandBackend: a program as a backend; so it has caches, conformance and cross-checking as every other one.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import shlex
import weakref
from threading import Lock
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

import attnkit as ak
from attnkit_conformance.command import messages
from attnkit_conformance.command.exchange import Exchange
from attnkit_conformance.command.lines import CommandFailureError, Lines
from attnkit_conformance.command.messages import Attend, Done, Errored, Unsupported
from attnkit_conformance.packages.calls import case_of_call
from attnkit_conformance.reports.declared import capabilities_of, declared

Array = np.ndarray[Any, Any]
_ATTENDED = TypeAdapter[Done | Unsupported | Errored](Done | Unsupported | Errored)
_HELLO = TypeAdapter[messages.HelloReply | Errored](messages.HelloReply | Errored)
_CAPABILITIES = TypeAdapter[messages.CapabilitiesReply | Errored](messages.CapabilitiesReply | Errored)


class CommandBackend(ak.Backend):
    """A program in another process, of any language.

    Parameters
    ----------
    command
        The command line; it is split as a shell would, and no shell sees it.
    seconds
        Time for a call.

    Raises
    ------
    CommandFailureError
        If it cannot be started, or does not say what it is.
    """

    name: ClassVar[str] = "command"
    automatic: ClassVar[bool] = False

    def __init__(self, command: str, *, seconds: float = 60.0) -> None:
        self.command, self.seconds = shlex.split(command), seconds
        if not self.command:
            raise CommandFailureError("cmd: must be followed by a program")
        self._lock, self._exchange = Lock(), Exchange()
        self._lines: Lines | None = None
        self._number = 0
        weakref.finalize(self, self._exchange.close)
        self.hello: messages.HelloReply
        self._declared = self._introduced()

    def capabilities(self) -> ak.Capabilities:
        """Give what the program declares."""
        return self._declared

    def attention(
        self, query: Array, key: Array, value: Array, operands: ak.Operands, request: ak.AttentionRequest
    ) -> ak.AttentionOutput:
        """Let the program compute one call."""
        case = case_of_call(query, key, value, operands, request)
        with self._lock:
            told = self._exchange.put(case, lse=request.lse)
            reply = self._ask(Attend(id=self._next(), folder=str(self._exchange.folder)), _ATTENDED, self.seconds)
            if isinstance(reply, Done):
                try:
                    return self._exchange.take(told)
                except CommandFailureError:
                    self._give_up()
                    raise
        if isinstance(reply, Unsupported):
            reason = ak.Reason(reply.code, reply.code, "taken by the program", reply.message or "refused")
            raise ak.UnsupportedError("the program does not take this call:", {self.name: (reason,)})
        raise CommandFailureError(f"the program says: {reply.message}")

    def from_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    def to_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    def close(self) -> None:
        """End the program."""
        with self._lock:
            self._give_up()
            self._exchange.close()

    def _introduced(self) -> ak.Capabilities:
        """Ask the program who it is and what it can do."""
        try:
            with self._lock:
                hello = self._ask(messages.Hello(id=self._next()), _HELLO, self.seconds)
                if isinstance(hello, Errored):
                    raise CommandFailureError(f"the program says: {hello.message}")
                self.hello = hello
                told = self._ask(messages.AskCapabilities(id=self._next()), _CAPABILITIES, self.seconds)
            if isinstance(told, Errored):
                raise CommandFailureError(f"the program says: {told.message}")
            plain = declared(ak.Capabilities())
            if unknown := sorted(set(told.capabilities) - set(plain)):
                raise CommandFailureError(f"capabilities: no field {unknown[0]!r}; there are {', '.join(plain)}")
            return capabilities_of({**plain, **told.capabilities})
        except (TypeError, ValueError, ak.PluginError) as error:
            self._give_up()
            raise CommandFailureError(f"capabilities: {error}") from error
        except CommandFailureError:
            self._give_up()
            raise

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ask(self, request: Any, replies: TypeAdapter[Any], seconds: float) -> Any:
        """Send a message, and give the reply; the program is ended where that is none."""
        try:
            if self._lines is None:
                self._lines = Lines(self.command)
                weakref.finalize(self, self._lines.end)
                if not isinstance(request, messages.Hello):
                    self._understood(self._lines.ask(_text(messages.Hello(id=0)), seconds), _HELLO, 0)
            return self._understood(self._lines.ask(_text(request), seconds), replies, request.id)
        except CommandFailureError:
            self._give_up()
            raise

    def _understood(self, line: bytes, replies: TypeAdapter[Any], number: int) -> Any:
        try:
            reply = replies.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise CommandFailureError(f"no reply: {line[:120]!r}: {first['msg']}") from None
        if reply.id != number:
            raise CommandFailureError(f"a reply to message {reply.id}, asked was message {number}")
        return reply

    def _give_up(self) -> None:
        if self._lines is not None:
            self._lines.end()
            self._lines = None


def _text(message: BaseModel) -> str:
    return message.model_dump_json()
