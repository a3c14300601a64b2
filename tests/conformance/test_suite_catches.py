"""The suite tells right from wrong: every faulty backend is caught, and no correct one is accused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import attnkit as ak
from attnkit_conformance.selftest.differentiable import Differentiable
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.selftest.plain import EVERYTHING, Flash, Plain, unregistered
from attnkit_conformance.selftest.running import CLASSES, failures

# Correct backends that declare little: what they do not take is asked for, and must not count against them.
MODEST = {
    "core": ak.Capabilities(),
    "halves": replace(EVERYTHING, dtypes=frozenset({"float16", "bfloat16"}), lse=False, kv_dtype=False),
    "picky": replace(
        EVERYTHING,
        dtypes=frozenset({"float64"}),
        head_dims=ak.Sizes(32, 128, 32),
        value_dim=False,
        max_key_length=1024,
        gqa=False,
        lengths=False,
        window=False,
        deterministic=False,
    ),
}

ASK_FOR_MORE = {"TestHiddenKeys", "TestMerge", "TestPadding", *(name for name in CLASSES if "Gradient" in name)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_is_caught(mutant: Mutant) -> None:
    caught = next(failures(mutant.subject(), mutant.killer), None)
    assert caught is not None, f"{mutant.killer} lets {mutant.name} pass"


def test_every_class_catches_something() -> None:
    assert {mutant.killer.partition("::")[0] for mutant in MUTANTS} == set(CLASSES)


def test_names_of_faults_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("name", CLASSES)
def test_a_correct_backend_passes(name: str) -> None:
    subject = unregistered(Differentiable())
    assert list(failures(subject, name)) == []
    assert set(subject.outcomes) == {"answered"}


@pytest.mark.parametrize("name", ["TestGroupedHeads", "TestNumerics", "TestOptions", "TestMerge", "TestShift"])
def test_a_correct_backend_of_other_numerics_passes(name: str) -> None:
    assert list(failures(unregistered(Flash()), name)) == []


@pytest.mark.parametrize("declared", MODEST.values(), ids=list(MODEST))
@pytest.mark.parametrize("name", CLASSES)
def test_a_modest_backend_passes(name: str, declared: ak.Capabilities) -> None:
    subject = unregistered(type("Modest", (Plain,), {"declared": declared, "tile": 256})())
    assert list(failures(subject, name)) == []
    assert subject.outcomes["answered"] or name in ASK_FOR_MORE
