"""Trace: which backend and path ran each call inside a ``with`` block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnkit.backend import AttentionOutput, Backend
from attnkit.explanation import explain_request
from attnkit.request import AttentionRequest, Operands
from attnkit.selection import Choice, Rejected, Selection

Array = Any


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


class Answered(NamedTuple):
    """One call that was computed, with its arrays.

    Attributes
    ----------
    request, operands
        As the backend got them; of a step of a cache, the key axis may be longer than ``key``.
    query, key, value
        ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]``; those of a cache are copies, decoded.
    result
        What came of it.
    backend, path
        What ran it.
    """

    request: AttentionRequest
    operands: Operands
    query: Array
    key: Array
    value: Array
    result: AttentionOutput
    backend: Backend
    path: str


Observer = Callable[[Answered], None]
_observer: ContextVar[Observer | None] = ContextVar("attnkit_observer", default=None)
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


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell an observer of each attention call of this thread or task inside the block, with its arrays.

    Calls inside a compiler or a transformation, which have no numbers yet, are not told. An inner observer takes over.
    """
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def observer() -> Observer | None:
    """Give who observes, if anyone does."""
    return _observer.get()
