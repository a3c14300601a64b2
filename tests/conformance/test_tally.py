"""What is made of a check that someone else ran."""

from __future__ import annotations

import pytest

from attnkit_conformance.items import items
from attnkit_conformance.measuring import Comparison
from attnkit_conformance.selftest.plain import Plain, unregistered
from attnkit_conformance.tally import NothingComparedError, Tally, reject_emptiness, result_of

SEEN = [Comparison("output", 3, exact=False, ratio=0.5), Comparison("lse", 2, exact=True, ratio=0.0)]
ITEM = items(0)[0]


@pytest.fixture
def subject():
    return unregistered(Plain())


def result(subject, notes=SEEN, error=None, item=ITEM):
    return result_of(item, subject, notes, error=error, seconds=1.0)


def test_a_check_that_compares_nothing_has_shown_nothing(subject) -> None:
    with pytest.raises(NothingComparedError) as caught:
        reject_emptiness(subject, [])
    assert (result(subject, [], caught.value).status, result(subject, [], caught.value).message) == (
        "ERROR",
        "nothing was compared",
    )
    reject_emptiness(subject, SEEN)


def test_results_tell_what_was_compared(subject) -> None:
    subject.outcomes["answered"] += 1
    found = result(subject)
    assert (found.status, found.outcome, found.comparisons, found.elements) == ("PASS", "answered", 2, 5)
    assert found.worst is not None
    assert found.worst.ratio == 0.5
    assert result(subject, error=ValueError("too much")).message == "ValueError: too much"


def test_what_has_no_means_is_not_run(subject) -> None:
    subject.outcomes["unchecked gradients, since there is no vjp"] += 1
    reject_emptiness(subject, [])
    assert result(subject, []).status == "NOT_RUN"


def test_a_part_is_a_part(subject) -> None:
    subject.outcomes["answered"] += 1
    tally = Tally(subject, 0, 0)
    for item in reversed(items(0)):
        assert tally.partial
        tally.add(result(subject, item=item))
    assert not tally.partial
    assert [found.id for found in tally.results] == [item.id for item in items(0)]
    assert list(tally.lines()) == [f"plain: {len(items(0))} answered; in process, no verdict: use attnkit conform run"]


def test_a_backend_of_which_nothing_was_seen(subject) -> None:
    tally = Tally(subject, 0, 0)
    assert not tally.unseen  # it was asked nothing
    subject.outcomes["outside query_length must be 1"] += 1
    tally.add(result(subject, []))
    assert tally.unseen
    assert next(tally.lines()).startswith("plain: nothing was answered; 1 outside")
