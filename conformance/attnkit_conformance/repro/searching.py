"""Searching: from a failure to the smallest tape, with a claim that it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from attnkit_conformance.cases import Case
from attnkit_conformance.repro.attempt import Bench, Budget, Failure
from attnkit_conformance.repro.claims import Changed, Claim, Refuses, complaint, numbers_of
from attnkit_conformance.repro.cutting import cut
from attnkit_conformance.repro.finding import claims
from attnkit_conformance.repro.isolating import isolated
from attnkit_conformance.repro.referee import Expectations, Referee
from attnkit_conformance.repro.shrinking import pinned, shrink
from attnkit_conformance.repro.tape import Calls, Run, live
from attnkit_conformance.subject import Subject

_FEW: Final = 64
_LEAST: Final = 6
"""Tries to find a claim, however long a case took to shrink; the first few claims are the most likely ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A fault, and what shows it.

    Attributes
    ----------
    start
        The case before shrinking.
    whole, small
        How it failed, and how the smallest case did that fails in the same way.
    claim, calls
        What the backend breaks, and the calls that show it.
    alone
        The calls are one of those that the check made, which is wrong by itself.
    """

    start: Case
    whole: Failure
    small: Failure
    claim: Claim
    calls: Calls
    alone: bool = False

    @property
    def is_simple(self) -> bool:
        """Tell whether there is a single call of a few numbers."""
        numbers = sum(array.size for call in self.calls for array in call.arrays)
        single = sum(call.computes for call in self.calls) <= 1
        return single and numbers <= _FEW and not isinstance(self.claim, Changed)


class Search:
    """Looks for what shows a fault.

    Parameters
    ----------
    bench
        Where things are tried.
    subject
        The backend under test: what it declares.
    seconds
        How long shrinking may go on.
    """

    def __init__(self, bench: Bench, subject: Subject, seconds: float) -> None:
        self._bench, self._capabilities, self._seconds = bench, subject.capabilities, seconds
        self.referee = Referee(subject.arithmetic)

    def found(self) -> Found | None:
        """Give what shows the fault of the item, or ``None`` if it does not fail again, or in no call."""
        start = self._bench.item.case.on(self._capabilities)
        whole = self._bench.attempt(pinned(start))
        if whole is None:
            return None
        small = self._shrunk(whole, self._bench, 0.5)
        found = self._shown(start, whole, small)
        if found is not None and found.is_simple:
            return found
        return next(self._alone(start, whole, small), found)

    def how_often(self, found: Found, bench: Bench, times: int) -> float:
        """Give the share of a few tries in which a bench shows the fault as well."""
        return sum(self._is_guilty(found.calls, found.claim, bench) for _ in range(times)) / times

    def outcome(self, found: Found, bench: Bench) -> tuple[Run, Expectations]:
        """Give what comes of the calls, and what must come."""
        return bench.replay(found.calls), self.referee(found.calls)[1]

    def _shrunk(self, failure: Failure, bench: Bench, share: float) -> Failure:
        return shrink(failure, self._capabilities, bench, Budget(share * self._seconds))

    def _shown(self, start: Case, whole: Failure, small: Failure) -> Found | None:
        """Give the first claim that the backend breaks and a correct one keeps, on the shortest tape."""
        *candidates, last = claims(small, self.referee)
        budget = Budget(0.25 * self._seconds, least=_LEAST)
        for whole_tape, claim in product((False, True), candidates):
            calls = small.calls if whole_tape else live(small.calls, numbers_of(claim))
            if budget.spend() and self._is_guilty(calls, claim, self._bench):
                return Found(start, whole, small, claim, self._cut(calls, claim))
        guilty = self._is_guilty(small.calls, last, self._bench)
        return Found(start, whole, small, last, small.calls) if guilty else None

    def _cut(self, calls: Calls, claim: Claim) -> Calls:
        budget = Budget(0.25 * self._seconds)
        return cut(calls, claim, lambda shorter: budget.spend() and self._is_guilty(shorter, claim, self._bench))

    def _alone(self, start: Case, whole: Failure, small: Failure) -> Iterator[Found]:
        """Give calls of the check that are wrong by themselves."""
        for item in isolated(self._bench.item, small.calls):
            bench = self._bench.on(item)
            failure = bench.attempt(pinned(item.case))
            if failure is not None and bench.is_fair(item.case):
                found = self._shown(start, whole, self._shrunk(failure, bench, 0.25))
                bench.close()
                if found is not None:
                    yield Found(found.start, whole, found.small, found.claim, found.calls, alone=True)

    def _is_guilty(self, calls: Calls, claim: Claim, bench: Bench) -> bool:
        """Tell whether the backend breaks a claim that a correct backend keeps."""
        right, expectations = self.referee(calls)
        # A correct backend of the suite's own declares everything, and never gives the bits of another one.
        sound = isinstance(claim, Refuses | Changed) or not complaint(claim, right, expectations)
        return sound and bench.breaks(calls, lambda run: complaint(claim, run, expectations))
