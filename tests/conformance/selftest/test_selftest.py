"""The self-test as a whole: what it tells, and that one wrong part makes it fail."""

from __future__ import annotations

import pytest

from attnkit_conformance.selftest import SelfTest, run_selftest
from attnkit_conformance.selftest import selftest as parts
from attnkit_conformance.selftest.correct import CORRECT, false_alarms
from attnkit_conformance.selftest.report import Step


def test_parts_are_run_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    found = {
        "first": lambda tell, full: ([f"full: {full}"], []),
        "second": lambda tell, full: (tell("halfway"), ["much"], ["this", "and that"])[1:],
    }
    monkeypatch.setattr(parts, "_PARTS", found)
    done = run_selftest(told.append, full=True)
    assert told == ["first", "second", "halfway"]
    assert not done.ok
    assert [step.ok for step in done.steps] == [True, False]
    lines = list(done.lines())
    assert lines[0].startswith("ok: first (")
    assert lines[1] == "  full: True"
    assert lines[-3:] == ["  WRONG: this", "  WRONG: and that", "1 of 2 steps are wrong"]


def test_all_is_well() -> None:
    done = SelfTest((Step("one", ("fine",), (), 0.5),))
    assert done.ok
    assert list(done.lines()) == ["ok: one (0.5 s)", "  fine", "the suite catches what it must"]


def test_it_has_all_its_parts() -> None:
    assert list(parts._PARTS) == [
        "the oracles agree",
        "correct backends pass",
        "bad miniatures get their verdicts",
        "known faults of libraries are rejected",
        "every fault is caught",
        "the smallest effects are as published",
    ]


def test_false_alarms_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit_conformance.selftest.miniatures import AlwaysZero
    from attnkit_conformance.selftest.plain import unregistered

    monkeypatch.setitem(CORRECT, "core", lambda: unregistered(AlwaysZero()))
    name, item, error = next(false_alarms(0.01, names=["core"]))
    assert name == "core"
    assert item.id in str(item)
    assert isinstance(error, Exception)
