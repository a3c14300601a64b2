"""How small an error is still detected: measured again for a few requirements, and no worse than published."""

from __future__ import annotations

import pytest

from attnkit_conformance.requirements import requirements
from attnkit_conformance.selftest.effects import Effect, Erring, measured, published, regressions, representatives
from attnkit_conformance.selftest.plain import unregistered
from attnkit_conformance.selftest.running import failure
from attnkit_conformance.selftest.selftest import FEW


@pytest.mark.parametrize("requirement", FEW)
def test_it_is_no_worse_than_published(requirement: str) -> None:
    assert list(regressions([requirement])) == []


def test_every_requirement_with_a_tolerance_is_published() -> None:
    unseen = {requirement.id for requirement in requirements()} - set(published())
    seen = [name for name in unseen if representatives(name) and list(measured([name]))]
    assert seen == [], "run python -m attnkit_conformance.selftest.effects"
    assert set(published()) <= {requirement.id for requirement in requirements()}


def test_effects_are_small() -> None:
    rows = sorted(effect.row for effect in published().values() if effect.row is not None)
    assert rows[len(rows) // 2] <= -15, "half of all requirements see an error of 2**-15 in a row"


def test_losses_of_more_than_a_step_are_told() -> None:
    was = Effect(requirement="ATTN-A-001", element=-10, row=-12, weight=3)
    assert was.worse_than(was) == []
    assert Effect(requirement="ATTN-A-001", element=-9, row=-13, weight=4).worse_than(was) == []
    worse = Effect(requirement="ATTN-A-001", element=-8, row=-12, weight=None).worse_than(was)
    assert worse == [
        "ATTN-A-001: an error in one element is detected from 2**-8 on, was 2**-10",
        "ATTN-A-001: an error in one weight is detected from 2**None on, was 2**3",
    ]


def test_what_is_not_detected_any_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit_conformance.selftest.effects.measured", lambda chosen, on_step: iter(()))
    assert list(regressions(["ATTN-LSE-001"])) == ["ATTN-LSE-001: no error is detected any more"]


@pytest.mark.parametrize("place", ["element", "row", "weight"])
def test_an_error_of_nothing_is_none(place: str) -> None:
    for requirement in ("ATTN-MASK-001", "ATTN-GRAD-001"):
        for item in representatives(requirement):
            assert failure(unregistered(Erring(place, 0.0, 0)), item) is None  # type: ignore[arg-type]
            assert failure(unregistered(Erring(place, 0.5, 0)), item) is not None  # type: ignore[arg-type]
