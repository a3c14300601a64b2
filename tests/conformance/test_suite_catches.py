"""The suite tells right from wrong: every faulty backend is caught, and no correct one is accused."""

from __future__ import annotations

import pytest

from attnkit_conformance.items import Item, items
from attnkit_conformance.requirements import LEVELS
from attnkit_conformance.selftest.correct import CORRECT, MODEST
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.gate import first_failure
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.selftest.running import CLASSES, failures, items_of
from attnkit_conformance.subject import Subject

MOST = 0.25  # of the items above the core; ``attnkit conform selftest --full`` runs all of them
SHARE = 0.05  # of all items, for backends like others


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_fault_is_caught(mutant: Mutant) -> None:
    _, caught, _ = first_failure(mutant.subject(), items_of(mutant.killer))
    assert caught is not None, f"{mutant.killer} lets {mutant.name} pass"


def alarms(subject: Subject, chosen: list[Item]) -> list[str]:
    return [f"{item.id}: {error}" for item, error in failures(subject, chosen)]


@pytest.mark.parametrize("name", CLASSES)
def test_a_correct_backend_passes(name: str) -> None:
    subject = CORRECT["differentiable"]()
    sampled = {item.id for item in (*items(1), *items(sample=MOST))}
    assert alarms(subject, [item for item in items_of(name) if item.id in sampled]) == []
    assert set(subject.outcomes) == {"answered"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [kind for kind in CORRECT if kind != "differentiable"])
def test_other_correct_backends_pass(kind: str, level: int) -> None:
    chosen = [item for item in items(sample=SHARE) if item.requirement.level == level] or items(level)
    assert alarms(CORRECT[kind](), chosen) == []


@pytest.mark.parametrize("kind", MODEST)
def test_a_modest_backend_is_asked_what_it_declares(kind: str) -> None:
    subject = CORRECT[kind]()
    assert alarms(subject, list(items_of("TestApplied"))) == []
    assert subject.outcomes["answered"] > 0
    assert any(outcome.startswith("refused") for outcome in subject.outcomes)
