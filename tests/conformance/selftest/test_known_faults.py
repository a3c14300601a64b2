"""What went wrong in well-known libraries is rejected, and the requirement names the convention."""

from __future__ import annotations

import pytest

from attnkit_conformance.requirements import requirements
from attnkit_conformance.selftest.gate import cheapest_first, first_failure
from attnkit_conformance.selftest.known_faults import KNOWN_FAULTS, KnownFault, mistakes
from attnkit_conformance.selftest.plain import Plain, unregistered

by_name = pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=str)


@by_name
def test_it_is_rejected_with_the_convention_named(fault: KnownFault) -> None:
    assert list(fault.mistakes()) == []


@by_name
def test_a_correct_backend_is_not(fault: KnownFault) -> None:
    assert first_failure(unregistered(Plain()), cheapest_first(fault.requirement))[1] is None


def test_there_are_nine() -> None:
    assert len({fault.name for fault in KNOWN_FAULTS}) == 9
    assert {fault.requirement for fault in KNOWN_FAULTS} <= {requirement.id for requirement in requirements()}


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = KnownFault("nothing", "ATTN-ERR-002", "a convention of its own", lambda: unregistered(Plain()))
    monkeypatch.setattr("attnkit_conformance.selftest.known_faults.KNOWN_FAULTS", (right,))
    assert list(mistakes()) == [
        "nothing: ATTN-ERR-002 does not reject it",
        "nothing: ATTN-ERR-002 does not say 'a convention of its own'",
    ]
