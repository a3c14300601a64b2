"""What went wrong in well-known libraries is rejected, and the requirement names the convention."""

from __future__ import annotations

import pytest

from attnkit_conformance.requirements import requirements
from attnkit_conformance.selftest.gate import cheapest_first, first_failure, level_by_level
from attnkit_conformance.selftest.known_faults import KNOWN_FAULTS, KnownFault, mistakes
from attnkit_conformance.selftest.plain import Plain, unregistered

by_name = pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=str)


@by_name
def test_it_is_rejected_with_the_convention_named(fault: KnownFault) -> None:
    assert list(fault.mistakes()) == []


@by_name
def test_a_correct_backend_is_not(fault: KnownFault) -> None:
    assert first_failure(unregistered(Plain()), cheapest_first(fault.requirement))[1] is None


def test_there_are_thirteen() -> None:
    assert len({fault.name for fault in KNOWN_FAULTS}) == 13
    assert {fault.requirement for fault in KNOWN_FAULTS} <= {requirement.id for requirement in requirements()}


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = KnownFault("nothing", "ATTN-ERR-002", "a convention of its own", lambda: unregistered(Plain()))
    monkeypatch.setattr("attnkit_conformance.selftest.known_faults.KNOWN_FAULTS", (right,))
    assert list(mistakes()) == [
        "nothing: ATTN-ERR-002 does not reject it",
        "nothing: ATTN-ERR-002 does not say 'a convention of its own'",
    ]


FIRST = {
    "an adapter drops is_causal": "ATTN-SHAPE-001",  # whose arrays of three and two axes are causal too
    "an unknown option is ignored": None,  # the core has no options
    "a log-sum-exp to the base of 2": "ATTN-API-002",
    "a window of W + 1 in decoding only": None,
    "an over-long crop leaves -2 tokens": "ATTN-CACHE-CUT-002",
    "an overflow raises after the cache has advanced": "ATTN-CACHE-FAIL-001",
    "a quantised crop counts 9 tokens and holds 7": "ATTN-CACHE-CODEC-003",  # which cuts what it encoded
    "padding is written over the last token": None,  # the core has no lengths
    "forks share a page": "ATTN-CACHE-ATTEND-001",  # in which a sequence is copied too
    "repeating does nothing": "ATTN-CACHE-BATCH-001",
    "top-left causal in decoding": "ATTN-CAUSAL-001",
    "an output of zeros": "ATTN-API-002",
    "a correlation of 0.13": "ATTN-API-002",
}


@pytest.mark.parametrize("fault", [fault for fault in KNOWN_FAULTS if FIRST[fault.name]], ids=str)
def test_what_fails_first(fault: KnownFault) -> None:
    _, item, _ = first_failure(fault.subject(), level_by_level(1))
    assert item is not None
    assert item.requirement.id == FIRST[fault.name]


@pytest.mark.parametrize("fault", [fault for fault in KNOWN_FAULTS if not FIRST[fault.name]], ids=str)
def test_the_core_has_nothing_against_what_is_no_part_of_it(fault: KnownFault) -> None:
    core = [item for item in level_by_level(1) if int(item.fingerprint, 16) < 0.2 * 16**12]
    assert first_failure(fault.subject(), core)[1] is None
