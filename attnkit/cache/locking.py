"""Locking: operations of one cache wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast


class Locked(Protocol):
    """Something with a lock that one thread may take again inside."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock."""


Owner = TypeVar("Owner", bound=Locked)
Given = ParamSpec("Given")
Result = TypeVar("Result")


def locked(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """Run a method with its owner's lock held."""

    @wraps(method)
    def run(self: Owner, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(Callable[Concatenate[Owner, Given], Result], run)
