"""Session: many items against a backend that may be wrong, crash, hang, or not be there at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnkit_conformance.harness.failures import BackendGone
from attnkit_conformance.harness.targets import TargetError
from attnkit_conformance.items import Item
from attnkit_conformance.results import GOOD, Result
from attnkit_conformance.runner import not_run, run_item
from attnkit_conformance.subject import Subject
from attnkit_conformance.subjects import Subjects
from attnkit_conformance.waivers import Ledger

PATIENCE = 10
"""So many items in a row may lose the process of a backend before the run ends."""
PROGRAMS = 20
"""So many reproducers are written in one run: where everything is wrong, more would tell nothing new."""


class Session:
    """Gives one result for every item, whatever happens.

    Parameters
    ----------
    subjects
        Where the backend comes from.
    ledger
        What is waived.
    limit
        Seconds that it may take for one item.
    stopped
        Why nothing can be run, if that is known from the start.

    Attributes
    ----------
    reproducers
        Who writes programs that repeat what failed, if anyone does.
    """

    def __init__(self, subjects: Subjects, ledger: Ledger, limit: float, stopped: str = "") -> None:
        self._subjects, self._ledger, self._limit = subjects, ledger, limit
        self.reproducers: Reproducers | None = None
        self._stopped = stopped
        self._harness_items: list[Result] = []
        self._lost_in_a_row = 0

    def results(self, chosen: Sequence[Item]) -> Iterator[Result]:
        """Run items, those of the harness first: where one of these fails, nothing after them would mean anything."""
        ordered = sorted(chosen, key=lambda item: item.requirement.level > 0)
        for item in ordered:
            if item.requirement.level > 0:
                self._stop_at_a_wrong_adapter()
            result = self._ledger.settle(not_run(item, self._stopped) if self._stopped else self._run(item))
            if item.requirement.level == 0:
                self._harness_items.append(result)
            yield result if self.reproducers is None else self.reproducers.told(item, result)

    def _run(self, item: Item) -> Result:
        try:
            subject = self._subjects.current()
        except (TargetError, BackendGone) as error:
            self._stopped = f"the backend could not be started again: {error}"
            return not_run(item, self._stopped)
        result = run_item(item, subject, self._limit)
        self._lost_in_a_row = self._lost_in_a_row + 1 if result.status in ("CRASH", "TIMEOUT") else 0
        if self._lost_in_a_row == PATIENCE:
            self._stopped = f"the backend's process was lost in {PATIENCE} items in a row"
        return result

    def _stop_at_a_wrong_adapter(self) -> None:
        bad = sum(result.status not in GOOD for result in self._harness_items)
        if bad and not self._stopped:
            self._stopped = f"the adapter is wrong: {bad} of {len(self._harness_items)} items of the harness failed"


class Reproducers:
    """Writes programs that repeat what failed, one for each test: the first of many failures is the one to read.

    Parameters
    ----------
    subjects
        Where other subjects come from.
    folder
        Where the programs go.
    limit
        Seconds that each subject may take.
    """

    def __init__(self, subjects: Subjects, folder: Path, limit: float) -> None:
        self._subjects, self._folder, self._limit = subjects, folder, limit
        self._seen: set[str] = set()

    def told(self, item: Item, result: Result) -> Result:
        """Give a result with the folder of its reproducer."""
        if result.status not in ("FAIL", "CRASH") or item.test in self._seen or len(self._seen) == PROGRAMS:
            return result
        self._seen.add(item.test)
        from attnkit_conformance.repro import reproduce

        try:
            made = reproduce(item, self._subject, self._folder)
            place = "" if made is None else made.relative_to(self._folder.parent).as_posix()
        except Exception as error:  # a reproducer that cannot be made must not end the run
            return result.model_copy(update={"message": f"{result.message}\nno reproducer: {error!r}"})
        return result.model_copy(update={"repro": place})

    def _subject(self) -> Subject:
        subject = self._subjects.fresh()
        subject.harness.allow(self._limit)
        return subject
