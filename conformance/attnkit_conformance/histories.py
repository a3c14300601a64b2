"""Histories: a state machine of Hypothesis that does anything to a cache and to the plain lists it must equal.

Needs ``hypothesis``; import it only to explore. What fails is shrunk, and told as a straight-line program of calls.

Axes: ``B`` batch, ``K`` key/value heads, ``T`` new tokens, ``D`` query/key head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import attnkit as ak
from attnkit_conformance.cache_model import CacheCase, History
from attnkit_conformance.cases import Array
from attnkit_conformance.exploring import explorer, last_failure_only
from attnkit_conformance.measuring import Mismatch
from attnkit_conformance.structures import CAUSALLY
from attnkit_conformance.subject import Subject, codes_of

_MOST: Final = 9  # tokens of an append
_ROOM: Final = 60  # tokens of a growing cache


class Machine(RuleBasedStateMachine):
    """One history; a subclass says whose."""

    backend: ClassVar[Subject]
    case: ClassVar[CacheCase]
    begin: ClassVar[Callable[[], None]]

    def __init__(self) -> None:
        super().__init__()
        type(self).begin()
        self.history = History(self.backend, self.case)
        config = ", ".join(f"{name}={value!r}" for name, value in self.case.config().items())
        self.program = [f"cache = ak.make_cache(ak.KVCacheConfig({config}))"]

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """C2: tokens for every layer, or, as in a forward pass that fails, for some."""
        count = data.draw(st.integers(0, self._room()))
        lengths = self._numbers(data, np.full(self.case.batch, count)) if self.case.ragged else None
        for layer in range(data.draw(st.sampled_from(self._layers()))):
            with self._step(f"cache[{layer}].append(*tokens({count}){_given('lengths', lengths)})"):
                self.history.append(self.history.tokens(count), lengths, layer=layer)

    @rule(data=st.data())
    def attend(self, data: st.DataObject) -> None:
        """C5: queries over every layer, the last of them at the last token, or seeing everything."""
        count, options = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(({}, CAUSALLY, self.case.options)))
        with self._step(f"layer.attend(queries({count}){_given_all(options)})  # for every layer of cache"):
            self._attend(count, options)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """C6: keep some tokens, of each sequence alike or not."""
        kept = self._each(data, self.history.least())
        with self._step(f"cache.truncate({_shown(kept)})"):
            self.history.truncate(kept)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """C6: drop the last tokens."""
        dropped = self._each(data, np.minimum(self.history.least(), 4))
        with self._step(f"cache.drop({_shown(dropped)})"):
            self.history.drop(dropped)

    @rule(data=st.data())
    def forget_poison(self, data: st.DataObject) -> None:
        """C6: append what must never be seen, then cut it off again."""
        count, least = data.draw(st.integers(0, self._room())), self.history.least()
        poison = data.draw(st.sampled_from((np.nan, np.inf)))
        with self._step(f"layer.append(*tokens({count}, fill={poison}))  # for every layer of cache"):
            self.history.extend(count, value=poison)
        with self._step(f"cache.truncate({_shown(least)})"):
            self.history.truncate(least)

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        """C7: permute or duplicate sequences."""
        number = st.integers(0, self.case.batch - 1)
        indices = np.array(data.draw(st.lists(number, min_size=self.case.batch, max_size=self.case.batch)))
        with self._step(f"cache.reorder({_shown(indices)})"):
            self.history.reorder(indices)

    @rule()
    def reset(self) -> None:
        """C6: forget everything."""
        with self._step("cache.reset()"):
            self.history.reset()

    @precondition(lambda self: self.case.max_length)
    @rule(data=st.data())
    def append_too_much(self, data: st.DataObject) -> None:
        """C3: over capacity, and nothing is written."""
        count = self.case.max_length - int(self.history.lengths().max()) + data.draw(st.integers(1, 9))
        with self._step(f"cache[0].append(*tokens({count}))  # must raise CacheCapacityError"):
            self._fails(ak.CacheCapacityError, lambda: self.history.append(self.history.tokens(count)))

    @rule(data=st.data())
    def forget_too_much(self, data: st.DataObject) -> None:
        """C6: more than is held is refused."""
        too_many = int(self.history.least().min()) + data.draw(st.integers(1, 3))
        with self._step(f"cache.drop({too_many})  # must raise ShapeError"):
            self._fails(ak.ShapeError, lambda: self.history.cache.drop(too_many))

    @rule()
    def append_misfit(self) -> None:
        """C3: keys without values of the same number of tokens."""
        key, value = self.history.tokens(3)
        with self._step("cache[0].append(tokens(3)[0], tokens(2)[1])  # must raise ShapeError"):
            self._fails(ak.ShapeError, lambda: self.history.append((key, value[:, :, :2])))

    def _each(self, data: st.DataObject, most: Array) -> Array | int:
        """Draw a number for each sequence, or one for all, each from 0 to the most there may be."""
        return self._numbers(data, most) if self.case.ragged else data.draw(st.integers(0, int(most.min())))

    def _numbers(self, data: st.DataObject, most: Array) -> Array:
        return np.array([data.draw(st.integers(0, int(limit))) for limit in most])

    def _room(self) -> int:
        held = max(int(self.history.lengths(layer).max()) for layer in self.history.layers)
        return min(_MOST, (self.case.max_length or _ROOM) - held)

    def _layers(self) -> list[int]:
        """Give how many layers may take part, all of them first."""
        return [self.case.layers, *range(1, self.case.layers)]

    def _attend(self, count: int, options: Mapping[str, Any]) -> None:
        """Attend, unless the path that was forced is not for such a call."""
        try:
            self.history.attend(count, options)
        except ak.UnsupportedError as error:
            if self.backend.path is None or codes_of(error) != {"path"}:
                raise

    def _fails(self, kind: type[Exception], call: Any) -> None:
        try:
            call()
        except kind:
            return
        raise AssertionError(f"the call must raise {kind.__name__}")

    @contextmanager
    def _step(self, line: str) -> Iterator[None]:
        """Do a step of the program, then compare all that can be observed; what fails is told with the program."""
        self.program.append(line)
        try:
            yield
            self.history.check()
        except Exception as error:  # a backend may raise anything
            raise _told(error, self.program) from error


def explore(backend: Subject, case: CacheCase, number: int, *, examples: int, steps: int) -> None:
    """Run histories of a cache from a seed; raises for the shortest that fails."""
    with last_failure_only() as begin:
        members = {"backend": backend, "case": case, "begin": staticmethod(begin)}
        machine = type("Histories", (Machine,), members)
        run_state_machine_as_test(seed(number)(machine), settings=explorer(examples, steps))


def _told(error: Exception, program: list[str]) -> AssertionError:
    message = f"{_text(error)}\nafter this program:\n" + "\n".join(f"    {line}" for line in program)
    if isinstance(error, Mismatch):
        return Mismatch(message, error.what, error.actual, error.expected, error.tau)
    return AssertionError(message)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


def _given(name: str, numbers: Array | int | None) -> str:
    return "" if numbers is None else f", {name}={_shown(numbers)}"


def _given_all(options: Mapping[str, Any]) -> str:
    return "".join(f", {name}={option!r}" for name, option in options.items())


def _shown(numbers: Array | int) -> str:
    return str(numbers.tolist() if isinstance(numbers, np.ndarray) else numbers)
