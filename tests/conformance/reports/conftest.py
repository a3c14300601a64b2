"""What tests of reports share: real reports, of a correct backend and of a faulty one, each of a few items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import pytest

import attnkit as ak
from attnkit.capabilities import CONTRACT_VERSION
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.items import Item, items, manifest_digest
from attnkit_conformance.reports.declared import declared
from attnkit_conformance.requirements import digest
from attnkit_conformance.results import Footer, Header, Report, Result
from attnkit_conformance.runner import run_item
from attnkit_conformance.selftest.plain import EVERYTHING, Plain, unregistered
from attnkit_conformance.subject import Subject
from attnkit_conformance.verdict import verdict_of

ReportOf = Callable[..., Report]
FEW = {"level": 2, "sample": 0.015}
FAILING = ("TestNumerics::test_distributions", "TestApplied::test_applied_or_refused", "TestHeads::", "TestOneHot::")


class Faulty(Plain):
    """It never rescales what it has summed, and declares three options and two element types."""

    name = "<faulty> & 'odd'"
    declared = ak.Capabilities(
        dtypes=frozenset({"float32", "bfloat16"}),
        window=True,
        lse=True,
        gqa=True,
        numerics=EVERYTHING.numerics,
    )

    def rescale_output(self, shrink: Any) -> Any:
        return 1.0


def finished(report: Report) -> Report:
    """Give a report the footer that its results deserve."""
    footer = Footer(counts=dict(report.counts()), seconds=1.5, verdict=verdict_of(report))
    return report.model_copy(update={"footer": footer})


def changed(report: Report, place: int = 0, **changes: Any) -> Report:
    """Give a report with another result at one place, and the footer that fits it."""
    results = list(report.results)
    results[place] = results[place].model_copy(update=changes)
    return finished(report.model_copy(update={"results": tuple(results)}))


def headed(report: Report, **changes: Any) -> Report:
    """Give a report with another header, and the footer that fits it."""
    return finished(report.model_copy(update={"header": report.header.model_copy(update=changes)}))


def report_of(subject: Subject, chosen: Sequence[Item], **header: Any) -> Report:
    """Run items in process, and make a report."""
    said = subject.description
    told = Header(
        suite=version("attnkit"),
        contract=CONTRACT_VERSION,
        requirements=digest(),
        manifest=manifest_digest(item.id for item in chosen),
        backend=said.name,
        paths=said.paths,
        source="a-plug-in 1.2",
        contract_version=said.contract_version,
        capabilities=declared(said.capabilities),
        environment={"python": "CPython 3.11", "numpy": "2.1"},
        started="2026-03-01T12:00:00+00:00",
        **header,
    )
    return finished(Report(header=told, results=tuple(run_item(item, subject) for item in chosen)))


@pytest.fixture(scope="session")
def clean() -> Report:
    """The NumPy backend: a whole run of a small sample, as it would be had it run in a process of its own."""
    return report_of(Subject(Harness("numpy", ak.get_backend("numpy"))), items(**FEW), **FEW, isolated=True)


@pytest.fixture(scope="session")
def faulty() -> Report:
    """A faulty backend: a part of a run, in which some is right, some refused and some wrong."""
    wanted = [item for item in items(2) if item.test.startswith(FAILING)]
    short = [item for item in wanted if item.test != FAILING[0] or item.case.keys != 40]  # else one fails too often
    chosen = [item for n, item in enumerate(short) if n % 3 == 0 or "gqa" in item.case.features()]
    return report_of(unregistered(Faulty()), chosen, partial=True)


@pytest.fixture(name="changed")
def changed_fixture() -> Callable[..., Report]:
    """Change one result of a report."""
    return changed


@pytest.fixture(name="headed")
def headed_fixture() -> Callable[..., Report]:
    """Change the header of a report."""
    return headed


@pytest.fixture
def failure(faulty: Report) -> Result:
    """A result that is wrong by a number."""
    return next(result for result in faulty.results if result.status == "FAIL" and result.worst and result.worst.at)
