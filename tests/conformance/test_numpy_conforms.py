"""The first-party NumPy backend, and each of its paths alone: the core in full, and a share of everything else.

All of it is a matter of minutes: ``attnkit conform run numpy --level 3``.
"""

from __future__ import annotations

import pytest

import attnkit as ak
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.items import Item, items
from attnkit_conformance.selftest.running import CLASSES, failures
from attnkit_conformance.subject import Subject

NUMPY = ak.get_backend("numpy")
CHOICES = ("numpy", *(f"numpy:{path}" for path in NUMPY.paths))
SHARE = {"numpy": 0.1}
OTHERS = 0.03  # of the items above the core, for a single path


def chosen(choice: str, name: str) -> list[Item]:
    every = {item.id: item for item in (*items(1), *items(sample=SHARE.get(choice, OTHERS)))}
    return [item for item in every.values() if item.test.startswith(f"{name}::")]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", CLASSES)
def test_it_conforms(choice: str, name: str, record_property: pytest.RecordProperty) -> None:
    subject = Subject(Harness(choice, NUMPY))
    found = [f"{item.id}: {error}" for item, error in failures(subject, chosen(choice, name))]
    for outcome, count in subject.outcomes.items():
        record_property(outcome, count)
    assert found == []
    strange = {outcome for outcome in subject.outcomes if outcome.partition(" ")[0] not in ("answered", "outside")}
    assert strange <= {"refused grad"}, "the backend declares all that it is asked but gradients"
    assert choice != "numpy" or not any(outcome.startswith("outside") for outcome in subject.outcomes)


@pytest.mark.parametrize("choice", CHOICES)
def test_no_path_keeps_out_of_everything(choice: str) -> None:
    subject = Subject(Harness(choice, NUMPY))
    for name in ("TestGroupedHeads", "TestApplied"):
        assert list(failures(subject, name)) == []
    assert subject.outcomes["answered"] > 0
