"""Steps of a history: each is a line of a program, and is followed by a look at everything.

Axes: ``B`` sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_model import History
from attnkit_conformance.cases import Array
from attnkit_conformance.measuring import Mismatch

_MOST: Final = 9  # tokens of an append
_ROOM: Final = 60  # tokens of a cache without a limit


class Steps(RuleBasedStateMachine):
    """A history that writes down what it does.

    Attributes
    ----------
    case
        Of the cache.
    history
        The cache, and what it must be.
    program
        The steps so far.
    """

    case: ClassVar[CacheCase]
    history: History
    program: list[str]

    @contextmanager
    def step(self, line: str) -> Iterator[None]:
        """Do a step of the program, then compare all that can be observed; what fails is told with the program."""
        self.program.append(line)
        try:
            yield
            self.history.check()
        except Exception as error:  # a backend may raise anything
            raise _told(error, self.program) from error

    def room(self) -> int:
        """Give how many tokens an append may bring."""
        reached = max(int(self.history.positions(layer).max(initial=0)) for layer in self.history.layers)
        return min(_MOST, self.case.layout.longest_append or _MOST, max((self.case.max_length or _ROOM) - reached, 0))

    def numbers(self, data: st.DataObject, most: Array) -> Array:
        """Draw a number for each sequence."""
        return np.array([data.draw(st.integers(0, int(limit))) for limit in most], np.int64)


def given(**arguments: Any) -> str:
    """Give keyword arguments as text, those that are ``None`` left out."""
    return "".join(f", {name}={shown(value)}" for name, value in arguments.items() if value is not None)


def shown(value: Array | Sequence[int] | int | Any) -> str:
    """Give a value as text."""
    return str(value.tolist()) if isinstance(value, np.ndarray) else repr(value)


def _told(error: Exception, program: list[str]) -> AssertionError:
    message = f"{_text(error)}\nafter this program:\n" + "\n".join(f"    {line}" for line in program)
    if isinstance(error, Mismatch):
        return Mismatch(message, error.what, error.actual, error.expected, error.tau)
    return AssertionError(message)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
