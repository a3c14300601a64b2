"""Requests stand where limits are, and refusals and answers both come up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.checks import agreement
from attnkit_conformance.features import FEATURES, declared_values
from attnkit_conformance.samples import any_choice, swarm
from attnkit_conformance.selftest.correct import CORRECT, MODEST
from attnkit_conformance.selftest.plain import Plain, unregistered
from attnkit_conformance.subject import Subject


def requests_to(subject: Subject, count: int) -> list[agreement.Request]:
    rng, known = np.random.default_rng(7), declared_values(subject.capabilities)
    values = [known if number % 2 else FEATURES for number in range(count)]
    return [agreement.any_request(subject, rng, any_choice(rng, swarm(rng), some)) for some in values]


@pytest.mark.parametrize("kind", MODEST)
def test_answers_and_refusals_both_come_up(kind: str) -> None:
    subject = CORRECT[kind]()
    codes = Counter(request.undeclared(subject.capabilities) for request in requests_to(subject, 300))
    assert codes[()] > 100
    assert sum(codes.values()) - codes[()] > 20
    assert any(len(missing) > 1 for missing in codes)


def test_sizes_stand_at_the_declared_limits() -> None:
    asked = requests_to(CORRECT["picky"](), 500)
    assert {31, 32, 33, 64, 96, 127, 128, 129, 160} <= {request.head_dim for request in asked}
    assert {1023, 1024, 1025} <= {request.keys for request in asked}


def test_gradients_are_asked_for_where_there_is_such_a_thing() -> None:
    asked = requests_to(unregistered(Plain()), 200)
    assert any(request.grad for request in asked)
    assert all("grad" in request.undeclared(Plain.declared) for request in asked if request.grad)


def test_thousands_of_requests_are_made() -> None:
    assert len(agreement.SAMPLES) * agreement.REQUESTS >= 2000


def test_a_path_that_gives_up_late_is_not_taken_for_one_that_says_so() -> None:
    """A call that was promised and is then refused with the code ``path`` is a fault on a forced path too."""
    reason = ak.Reason("path", "path", "another", "this")

    class Late(Plain):
        def attention(self, *_arguments: Any) -> ak.AttentionOutput:
            raise ak.UnsupportedError("no", {self.name: (reason,)})

    with pytest.raises(AssertionError, match="unsupported gives no reason, yet the call is refused"):
        agreement.TestAgreement().test_a_call_does_what_was_said(
            backend=unregistered(Late()), case=agreement.SAMPLES[0]
        )
