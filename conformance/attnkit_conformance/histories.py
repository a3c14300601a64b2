"""Histories: a state machine of Hypothesis that does anything to a cache and to the plain lists it must equal.

Needs ``hypothesis``; import it only to explore. What fails is shrunk, and told as a straight-line program of calls.

Axes: ``B`` sequences, ``K`` key/value heads, ``T`` new tokens, ``D`` query/key head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

import attnkit as ak
from attnkit_conformance.cache_case import CacheCase
from attnkit_conformance.cache_model import History
from attnkit_conformance.cases import Array
from attnkit_conformance.exploring import explorer, last_failure_only
from attnkit_conformance.histories_sequences import SequenceRules
from attnkit_conformance.histories_steps import given, shown
from attnkit_conformance.structures import CAUSALLY
from attnkit_conformance.subject import Subject, codes_of


class Machine(SequenceRules):
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

    @initialize(data=st.data())
    def begin_with(self, data: st.DataObject) -> None:
        """C2: the first tokens, for what follows to be about something."""
        self._append(data, self.case.layers, least=min(3, self.room()))

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """C2: tokens for every layer."""
        self._append(data, self.case.layers)

    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        """C5: one token more, and a query that stands on it."""
        if self.room():
            with self.step("layer.append(*tokens(1))  # for every layer of cache"):
                self.history.extend(1)
        self._attend(1, data.draw(st.sampled_from((CAUSALLY, self.case.options))))

    @precondition(lambda self: self.case.layers > 1)
    @rule(data=st.data())
    def fail_to_append(self, data: st.DataObject) -> None:
        """C1: tokens for some layers, as in a forward pass that fails."""
        self._append(data, data.draw(st.integers(1, self.case.layers - 1)))

    @rule(data=st.data())
    def attend(self, data: st.DataObject) -> None:
        """C5: queries over every layer, the last of them at the last token, or seeing everything."""
        count, options = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(({}, CAUSALLY, self.case.options)))
        self._attend(count, options)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """C6: keep some tokens, of each sequence alike or not; drop the last ones; a ring may have to refuse."""
        least = self.history.least()
        if data.draw(st.booleans()):
            kept = self._each(data, least)
            with self.step(f"cache.truncate({shown(kept)}){self._must_fail(kept)}"):
                self.history.truncate(kept)
        else:
            dropped = self._each(data, np.minimum(least, 4))
            with self.step(f"cache.drop({shown(dropped)}){self._must_fail(least - dropped)}"):
                self.history.drop(dropped)

    @precondition(lambda self: self.history.is_even)  # or a ring may have to keep the poison
    @rule(data=st.data())
    def forget_poison(self, data: st.DataObject) -> None:
        """C6: append what must never be seen, then cut it off again."""
        count, least = data.draw(st.integers(min(1, self.room()), self.room())), self.history.least()
        poison = data.draw(st.sampled_from((np.nan, np.inf)))
        with self.step(f"layer.append(*tokens({count}, fill={poison}))  # for every layer of cache"):
            self.history.extend(count, value=poison)
        with self.step(f"cache.truncate({shown(least)})"):
            self.history.truncate(least)

    @precondition(lambda self: self.history.batch)
    @rule(data=st.data())
    def ask_too_much(self, data: st.DataObject) -> None:
        """C3, C6: what does not fit is refused, and nothing is written: tokens over capacity, or that are not there."""
        limited = self.case.max_length or self.case.layout.longest_append
        match data.draw(st.sampled_from(("misfit", "drop", "reset", *["append"] * bool(limited)))):
            case "misfit":
                key, value = (self.backend.array(self.history.tokens(n)[half]) for half, n in enumerate((3, 2)))
                with self.step("cache[0].append(tokens(3)[0], tokens(2)[1])  # must raise ShapeError"):
                    self.history.refused(ak.ShapeError, lambda: self.history.cache[0].append(key, value))
            case "drop":
                too_many = int(self.history.least().min()) + data.draw(st.integers(1, 3))
                with self.step(f"cache.drop({too_many})  # must raise ShapeError"):
                    self.history.refused(ak.ShapeError, lambda: self.history.cache.drop(too_many))
            case "append":
                self._append_too_much(data)
            case _:
                with self.step("cache.reset()"):
                    self.history.reset()

    def _append(self, data: st.DataObject, layers: int, least: int = 0) -> None:
        count = data.draw(st.integers(least, self.room()))
        lengths = self.numbers(data, np.full(self.history.batch, count)) if self.case.ragged else None
        for layer in range(layers):
            with self.step(f"cache[{layer}].append(*tokens({count}){given(lengths=lengths)})"):
                self.history.append(self.history.tokens(count), lengths, layer=layer)

    def _append_too_much(self, data: st.DataObject) -> None:
        room = self.case.max_length - int(self.history.positions().max()) if self.case.max_length else 0
        count = max(room, self.case.layout.longest_append or 0) + data.draw(st.integers(1, 9))
        arrays = [self.backend.array(array) for array in self.history.tokens(count)]
        with self.step(f"cache[0].append(*tokens({count}))  # must raise CacheCapacityError"):
            self.history.refused(ak.CacheCapacityError, lambda: self.history.cache[0].append(*arrays))

    def _each(self, data: st.DataObject, most: Array) -> Array | int:
        """Draw a number for each sequence, or one for all, each from 0 to the most there may be."""
        if self.case.ragged:
            return self.numbers(data, most)
        return data.draw(st.integers(0, int(most.min(initial=9))))

    def _must_fail(self, kept: Array | int) -> str:
        """Say in the program that a cut must be refused."""
        can = self.history.lists.can_cut(np.broadcast_to(kept, (self.history.batch,)))
        return "" if can else "  # must raise ShapeError"

    def _attend(self, count: int, options: Mapping[str, Any]) -> None:
        """Attend, unless the path that was forced is not for such a call."""
        with self.step(f"layer.attend(queries({count}){given(**options)})  # for every layer of cache"):
            try:
                self.history.attend(count, options)
            except ak.UnsupportedError as error:
                if self.backend.path is None or codes_of(error) != {"path"}:
                    raise


def explore(backend: Subject, case: CacheCase, number: int, *, examples: int, steps: int) -> None:
    """Run histories of a cache from a seed; raises for the shortest that fails."""
    with last_failure_only() as begin:
        members = {"backend": backend, "case": case, "begin": staticmethod(begin)}
        machine = type("Histories", (Machine,), members)
        run_state_machine_as_test(seed(number)(machine), settings=explorer(examples, steps))
