"""Bad miniatures through the front door, each in a process of its own: the verdict, and who names it."""

from __future__ import annotations

from collections import Counter

import pytest

from attnkit_conformance.results import Footer, Report
from attnkit_conformance.selftest.miniatures import MINIATURES, Miniature
from attnkit_conformance.selftest.trials import Trial, trial


@pytest.mark.parametrize("miniature", MINIATURES, ids=str)
def test_it_gets_its_verdict(miniature: Miniature) -> None:
    found = trial(miniature)
    assert found.ok, str(found)
    assert found.rejected
    assert found.report.header.isolated
    assert found.report.header.backend == miniature.target


def test_every_kind_of_end_is_among_them() -> None:
    assert Counter(miniature.status for miniature in MINIATURES) == {"FAIL": 14, "CRASH": 2, "TIMEOUT": 1}


def test_a_report_in_which_nothing_fails_is_no_rejection() -> None:
    found = trial(MINIATURES[0])
    good = tuple(result.model_copy(update={"status": "PASS"}) for result in found.report.results)
    footer = Footer(counts={"PASS": len(good)}, seconds=0.0, verdict="CONFORMANT attnkit-contract 1.0")
    passed = Trial(MINIATURES[0], Report(header=found.report.header, results=good, footer=footer))
    assert not passed.rejected
    assert not passed.ok
