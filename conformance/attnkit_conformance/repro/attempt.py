"""Attempt: an item, or a tape, tried on a fresh backend, and how it failed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.items import Item
from attnkit_conformance.measuring import Mismatch
from attnkit_conformance.repro.tape import Call, Calls, Run, Taped, replay
from attnkit_conformance.selftest.differentiable import Differentiable
from attnkit_conformance.selftest.plain import unregistered
from attnkit_conformance.subject import Subject

Make = Callable[[], Subject]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal that was waited for: its codes, and the first of the calls it could have come from."""

    codes: frozenset[str]
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """How a case failed.

    Attributes
    ----------
    case
        The case.
    error
        What its check raised.
    calls, run
        What the backend was asked, and what came of that.
    refusal
        The refusal that was waited for, if there was one.
    """

    case: Case
    error: Exception
    calls: tuple[Call, ...]
    run: Run
    refusal: Refusal | None

    @property
    def kind(self) -> tuple[str, str, str]:
        """What two failures have in common that are the same but for sizes, places and numbers."""
        last = self.calls[-1].method if self.raised else ""
        return type(self.error).__name__, _gist(self.error), last

    @property
    def raised(self) -> bool:
        """Tell whether the last call raised what the check did not catch."""
        return bool(self.calls) and self.run.errors.get(self.calls[-1].number) is self.error

    @property
    def named(self) -> bool:
        """Tell whether the last call raised an error of the right kind, with which something else was wrong."""
        return bool(self.calls) and self.run.errors.get(self.calls[-1].number) is self.error.__cause__ is not None


class Budget:
    """How long something may go on.

    Parameters
    ----------
    seconds
        Wall time from now on.
    tries
        How many times a backend may be tried.
    least
        How many times it may be tried, however late it is.
    """

    def __init__(self, seconds: float, tries: int = 600, least: int = 0) -> None:
        self._until, self._left, self._least = time.monotonic() + seconds, tries, tries - least

    def spend(self) -> bool:
        """Take one try, if there is one left."""
        self._left -= 1
        return self._left >= self._least or (self._left >= 0 and time.monotonic() < self._until)


class Bench:
    """Tries things on a backend.

    Parameters
    ----------
    item
        Whose test is run.
    make_subject
        Gives the backend.
    anew
        Take a new one each time: a fault may lie in what a backend remembers. Otherwise one is kept for as long as it
        lives, since starting a process takes seconds.
    times
        How many times in a row it must fail: a fault may show only now and then.
    """

    def __init__(self, item: Item, make_subject: Make, *, anew: bool = True, times: int = 1) -> None:
        self.item, self.anew, self.times = item, anew, times
        self._make = make_subject
        self._subject: Subject | None = None

    def on(self, item: Item) -> Bench:
        """Give a bench for another item."""
        return Bench(item, self._make, anew=self.anew, times=self.times)

    def attempt(self, case: Case) -> Failure | None:
        """Run the item's test on a case, and say how it failed."""
        failures = (self._once(case) for _ in range(self.times))
        first = next(failures)
        if first is None or any(again is None or again.kind != first.kind for again in failures):
            return None
        return first

    def breaks(self, calls: Calls, broken: Callable[[Run], object]) -> bool:
        """Make the calls of a tape, and tell whether what came of them is broken."""
        return all(broken(self.replay(calls)) for _ in range(self.times))

    def replay(self, calls: Calls) -> Run:
        """Make the calls of a tape."""
        with self._borrowed() as subject:
            return replay(calls, subject.harness)

    def _once(self, case: Case) -> Failure | None:
        with self._borrowed() as subject:
            trial = _Trial(subject.harness)
            error = _error_of(partial(replace(self.item, case=case).run, trial))
            # A check that expects errors may have taken the end of the process for one.
            error = subject.harness.gone or error
            if error is None:
                return None
            return Failure(case, error, tuple(trial.taped.calls), trial.taped.run, trial.refusal)

    def is_fair(self, case: Case) -> bool:
        """Tell whether a correct backend passes the item's test on a case: not every test takes every case."""
        return _error_of(partial(replace(self.item, case=case).run, unregistered(Differentiable()))) is None

    def close(self) -> None:
        """End the backend that was kept."""
        if self._subject is not None:
            self._subject.harness.close()
            self._subject = None

    @contextmanager
    def _borrowed(self) -> Iterator[Subject]:
        if self._subject is None or self._subject.harness.gone is not None:
            self._subject = self._make()
        try:
            yield self._subject
        finally:
            if self.anew:
                self.close()


class _Trial(Subject):
    """A backend under test whose calls are taped."""

    def __init__(self, harness: Harness) -> None:
        self.taped = Taped(harness)
        self.refusal: Refusal | None = None
        super().__init__(cast(Harness, self.taped))

    def assert_refused(self, missing: Iterable[str], call: Callable[[], object]) -> None:
        """Check a refusal, and remember that it was waited for."""
        codes = frozenset(missing)
        self.refusal = Refusal(codes, len(self.taped.calls))
        super().assert_refused(codes, call)
        self.refusal = None


def _error_of(run: Callable[[], object]) -> Exception | None:
    """Give what a check raises; a backend, and a check that does not fit its case, may raise anything."""
    try:
        with np.errstate(all="ignore"):
            run()
    except Exception as error:
        return error
    return None


def _gist(error: Exception) -> str:
    """Give what an error of a check says, without numbers, places and addresses; nothing for a backend's own."""
    if not isinstance(error, AssertionError):
        return ""
    text: Any = error.what if isinstance(error, Mismatch) else str(error)
    return re.sub(r"\[[^\]]*\]+|-?\d[\d.e+-]*", "#", re.split(r"[<\n]", text)[0])
