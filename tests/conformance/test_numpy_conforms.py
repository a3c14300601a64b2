"""The first-party NumPy backend, and each of its paths alone, against the whole suite."""

from __future__ import annotations

import pytest

import attnkit as ak
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.selftest.running import CLASSES, failures
from attnkit_conformance.subject import Subject

NUMPY = ak.get_backend("numpy")
CHOICES = ("numpy", *(f"numpy:{path}" for path in NUMPY.paths))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", CLASSES)
def test_it_conforms(choice: str, name: str, record_property: pytest.RecordProperty) -> None:
    subject = Subject(Harness(choice, NUMPY))
    found = [f"{check}: {error}" for check, error in failures(subject, name)]
    for outcome, count in subject.outcomes.items():
        record_property(outcome, count)
    assert found == []
    if "Gradient" in name:
        assert set(subject.outcomes) == {"refused grad"}, "NumPy has no gradients"
        return
    strange = {outcome for outcome in subject.outcomes if outcome.partition(" ")[0] not in ("answered", "outside")}
    assert strange == set(), "the backend declares all else that it is asked"
    assert choice != "numpy" or set(subject.outcomes) == {"answered"}


@pytest.mark.parametrize("choice", CHOICES)
def test_no_path_keeps_out_of_everything(choice: str) -> None:
    subject = Subject(Harness(choice, NUMPY))
    for name in ("TestGroupedHeads", "TestApplied"):
        assert list(failures(subject, name)) == []
    assert subject.outcomes["answered"] > 0
