"""Changes that are no faults pass everything; were they faults, the suite would see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnkit_conformance.items import items
from attnkit_conformance.selftest.equivalents import EQUIVALENTS, Equivalent, RoundedParts, operands
from attnkit_conformance.selftest.faults import fault
from attnkit_conformance.selftest.mutants import BY_NAME
from attnkit_conformance.selftest.plain import EVERYTHING
from attnkit_conformance.selftest.precision_mutants import tf32
from attnkit_conformance.selftest.running import failures, items_of

SHARE = 0.02  # beside the class that would catch a fault of this kind, which is asked in full


@pytest.mark.parametrize("equivalent", EQUIVALENTS, ids=lambda equivalent: equivalent.mutant.name)
def test_nothing_tells_it_from_a_correct_backend(equivalent: Equivalent) -> None:
    asked = {item.id: item for item in (*items_of(equivalent.mutant.killer), *items(sample=SHARE))}
    subject = equivalent.mutant.subject()
    assert [(item.id, str(error)) for item, error in failures(subject, asked.values())] == []
    assert subject.outcomes["answered"] > 50


def test_each_has_a_proof_and_is_no_fault_elsewhere() -> None:
    assert all(equivalent.proof.endswith(".") for equivalent in EQUIVALENTS)
    assert {equivalent.mutant.name for equivalent in EQUIVALENTS} & set(BY_NAME) == set()


@pytest.mark.parametrize(
    ("parent", "members"),
    [
        (RoundedParts, {"declared": replace(EVERYTHING, dtypes=frozenset({"bfloat16"}))}),  # which rounds no weights
        (None, {"read": operands(tf32)}),  # float32 too
    ],
)
def test_where_the_proof_does_not_hold_it_is_caught(parent: Any, members: dict[str, Any]) -> None:
    changed = fault("changed", "TestNumerics", *([parent] if parent else []), **members)
    assert next(failures(changed.subject(), changed.killer), None) is not None
