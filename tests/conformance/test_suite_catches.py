"""The suite tells right from wrong: every faulty backend is caught, and no correct one is accused."""

from __future__ import annotations

import pytest

from attnkit_conformance.items import Item
from attnkit_conformance.selftest.correct import CORRECT, MODEST
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.gate import first_failure
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.selftest.running import CLASSES, failures, items_of
from attnkit_conformance.subject import Subject

SHARE = 0.1  # of the items of a class above the core, for backends like others


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_fault_is_caught(mutant: Mutant) -> None:
    _, caught, _ = first_failure(mutant.subject(), items_of(mutant.killer))
    assert caught is not None, f"{mutant.killer} lets {mutant.name} pass"


def alarms(subject: Subject, chosen: list[Item]) -> list[str]:
    return [f"{item.id}: {error}" for item, error in failures(subject, chosen)]


@pytest.mark.parametrize("name", CLASSES)
def test_a_correct_backend_passes(name: str) -> None:
    subject = CORRECT["differentiable"]()
    assert alarms(subject, list(items_of(name))) == []
    assert set(subject.outcomes) == {"answered"}


@pytest.mark.parametrize("kind", [kind for kind in CORRECT if kind != "differentiable"])
@pytest.mark.parametrize("name", CLASSES)
def test_other_correct_backends_pass(name: str, kind: str) -> None:
    subject = CORRECT[kind]()
    chosen = [
        item for item in items_of(name) if item.requirement.level < 2 or int(item.fingerprint, 16) < SHARE * 16**12
    ]
    assert alarms(subject, chosen) == []


@pytest.mark.parametrize("kind", MODEST)
def test_a_modest_backend_is_asked_what_it_declares(kind: str) -> None:
    subject = CORRECT[kind]()
    assert alarms(subject, list(items_of("TestApplied"))) == []
    assert subject.outcomes["answered"] > 0
    assert any(outcome.startswith("refused") for outcome in subject.outcomes)
