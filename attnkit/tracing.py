"""Trace: which backend and path ran each call inside a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from attnkit.explanation import explain_request
from attnkit.request import AttentionRequest
from attnkit.selection import Choice, Rejected, Selection


@dataclass(frozen=True, slots=True)
class Call:
    """One traced call.

    Attributes
    ----------
    request
        What was asked for.
    backend, path
        What ran it.
    choice
        What the caller chose, ``None`` for automatic.
    """

    request: AttentionRequest
    backend: str
    path: str
    choice: Choice

    @property
    def reasons(self) -> Rejected:
        """Why every other backend and path was not taken; worked out when asked for."""
        return explain_request(self.request, self.choice).rejected


_calls: ContextVar[list[Call] | None] = ContextVar("attnkit_trace", default=None)


@contextmanager
def trace() -> Iterator[list[Call]]:
    """Collect a ``Call`` for each attention call of this thread or task inside the block, caches' included.

    An inner trace takes over from an outer one until it ends.
    """
    calls: list[Call] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def record(request: AttentionRequest, selection: Selection, choice: Choice) -> None:
    """Note a call if anyone traces."""
    calls = _calls.get()
    if calls is not None:
        calls.append(Call(request, selection.backend.name, selection.plan.path, choice))
