"""Haste: a failure that nobody is going to read need not be made small first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_HASTY = ContextVar("attnkit_conformance_hasty", default=False)


@contextmanager
def hastily() -> Iterator[None]:
    """Take the first failure of a search as it comes, inside the block."""
    before = _HASTY.set(True)
    try:
        yield
    finally:
        _HASTY.reset(before)


def is_hasty() -> bool:
    """Tell whether failures are taken as they come."""
    return _HASTY.get()
