"""Conformance: the whole suite against one backend, with a report; or check by check, for a test framework."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import attnkit as ak
from attnkit_conformance.harness.failures import BackendGone
from attnkit_conformance.harness.targets import UnavailableError
from attnkit_conformance.headers import backend_facts, suite_facts
from attnkit_conformance.items import Item, items
from attnkit_conformance.measuring import measuring
from attnkit_conformance.reports.journal import Journal
from attnkit_conformance.requirements import Requirement
from attnkit_conformance.results import Footer, Header, Report, Result
from attnkit_conformance.runner import LIMIT
from attnkit_conformance.session import Reproducers, Session
from attnkit_conformance.subject import Subject
from attnkit_conformance.subjects import Subjects
from attnkit_conformance.verdict import verdict_of
from attnkit_conformance.waivers import Ledger, Waiver


def run_conformance(
    target: str | ak.Backend,
    *,
    level: int = 2,
    seed: int = 0,
    sample: float = 1.0,
    only: Sequence[str] = (),
    isolated: bool = True,
    device: str = "",
    timeout: float = LIMIT,
    waivers: Sequence[Waiver] = (),
    on_result: Callable[[Result], None] | None = None,
    journal: Path | None = None,
    repro: Path | None = None,
    numerics: Mapping[str, str] | None = None,
) -> Report:
    """Hold a backend to the contract.

    Parameters
    ----------
    target
        ``NAME``, ``NAME:PATH`` or ``module:factory``; or a backend itself, which runs in this process and therefore
        gets no verdict.
    level
        0 harness, 1 core, 2 declared, 3 quality; each contains those before it.
    seed
        Of all random numbers.
    sample
        Share of the items, which the seed chooses.
    only
        Shell patterns for ids of requirements or items; all by default.
    isolated
        Run the backend in a process of its own. Only then is there a verdict.
    device
        Where its arrays are to lie, in the words of its array library.
    timeout
        Seconds that it may take for one item.
    waivers
        Failures that are known, see ``attnkit_conformance.waivers``.
    on_result
        Called with every result as it comes.
    journal
        File for the results as they come, see ``attnkit_conformance.reports.journal``.
    repro
        Folder for programs that repeat what failed.
    numerics
        Element type -> what to hold the backend to in the place of what it declares: a profile, or the ``text`` of
        ``attnkit_conformance.custom.CustomNumerics``, which the verdict then names.

    Raises
    ------
    TargetError
        If the target names nothing that could be tested. One that is not available on this machine is reported.
    WaiverError
        If a waiver has expired, or names what there is not.
    ValueError
        If a pattern of ``only`` fits nothing.
    """
    subjects = Subjects(target, isolated=isolated, device=device, numerics=numerics)
    manifest = items(level, seed=seed, sample=sample)
    chosen = _only(manifest, only)
    ledger = Ledger(waivers, subjects.name, chosen, whole=sample >= 1 and not only)
    with ExitStack() as stack:
        subject, absent = _opened(stack.enter_context(subjects))
        header = Header(
            **suite_facts((item.id for item in manifest), datetime.now(UTC)),
            **({"backend": subjects.name} if subject is None else backend_facts(subject)),
            level=level,
            seed=seed,
            sample=sample,
            partial=bool(only),
            isolated=subjects.isolated,
            waivers=tuple(waiver.model_dump(mode="json") for waiver in ledger.waivers.values()),
        )
        session = Session(subjects, ledger, timeout, absent)
        if repro is not None:
            spare = stack.enter_context(Subjects(target, isolated=isolated, device=device, numerics=numerics))
            session.reproducers = Reproducers(spare, repro, timeout)
        return _recorded(header, session.results(chosen), on_result, journal)


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One item against one backend; called without arguments, it raises where the backend fails.

    Attributes
    ----------
    item
        The item.
    subject
        The backend.
    """

    item: Item
    subject: Subject

    def __str__(self) -> str:
        return self.id

    def __call__(self) -> None:
        """Check the backend.

        Raises
        ------
        AssertionError
            If it is wrong, or if nothing was compared.
        """
        __tracebackhide__ = True
        with measuring() as notes:
            self.item.run(self.subject)
        if not notes:
            raise AssertionError(f"{self.id}: nothing was compared")

    @property
    def id(self) -> str:
        """Its name in reports."""
        return self.item.id

    @property
    def requirement(self) -> Requirement:
        """What it is about."""
        return self.item.requirement


def iter_checks(target: str | ak.Backend, *, level: int = 2, seed: int = 0) -> Iterator[Check]:
    """Give every check of a level against a backend in this process, for a test framework to call.

    Raises
    ------
    TargetError
        If the target names nothing that could be tested.
    """
    subject = Subjects(target, isolated=False).current()
    return (Check(item, subject) for item in items(level, seed=seed))


def _only(manifest: Sequence[Item], patterns: Sequence[str]) -> list[Item]:
    """Choose items by patterns, each of which must fit something: a run of nothing must not look like a good one."""
    idle = [pattern for pattern in patterns if not any(_fits(item, pattern) for item in manifest)]
    if idle:
        raise ValueError(f"only: no item or requirement of this level is called {', '.join(map(repr, idle))}")
    return [item for item in manifest if not patterns or any(_fits(item, pattern) for pattern in patterns)]


def _fits(item: Item, pattern: str) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for name in (item.id, item.requirement.id))


def _opened(subjects: Subjects) -> tuple[Subject | None, str]:
    """Give the first subject; or why there is none on this machine, which is no fault of its own."""
    try:
        return subjects.current(), ""
    except (UnavailableError, BackendGone) as error:
        return None, str(error)


def _recorded(
    header: Header, results: Iterable[Result], on_result: Callable[[Result], None] | None, journal: Path | None
) -> Report:
    """Gather results, and tell of each as it comes."""
    started, gathered = time.perf_counter(), []
    with nullcontext() if journal is None else Journal(journal) as written:
        if written is not None:
            written.start(header)
        for result in results:
            gathered.append(result)
            if written is not None:
                written.add(result)
            if on_result is not None:
                on_result(result)
        report = _finished(Report(header=header, results=tuple(gathered)), time.perf_counter() - started)
        if written is not None and report.footer is not None:
            written.finish(report.footer)
    return report


def _finished(report: Report, seconds: float) -> Report:
    footer = Footer(counts=report.counts(), seconds=seconds, verdict=verdict_of(report))
    return report.model_copy(update={"footer": footer})
