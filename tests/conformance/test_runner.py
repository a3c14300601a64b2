"""The runner: what comes of one item, whatever the backend does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.checking import Checks, over
from attnkit_conformance.gradient_cases import graded
from attnkit_conformance.harness.failures import BackendDied, BackendError, BackendHung
from attnkit_conformance.harness.local import Harness
from attnkit_conformance.harness.targets import open_target
from attnkit_conformance.items import Item, items
from attnkit_conformance.results import Result
from attnkit_conformance.runner import not_run, run_item
from attnkit_conformance.selftest.plain import EVERYTHING, Plain
from attnkit_conformance.subject import Subject

CASE = Case(label="small", queries=3, keys=5)
SOFTCAPPED = replace(CASE, options={"softcap": 2.0})
Check = Callable[[Any, Subject, Case], None]


class Remote(Harness):
    """Looks as if its backend lived in another process."""

    is_remote = True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a check on a case and a backend."""

    def run(check: Check, harness: Harness, case: Case = CASE) -> Result:
        kind = type("TestOne", (Checks,), {"test_one": over([case])(check)})
        monkeypatch.setattr("attnkit_conformance.suite.TestOne", kind, raising=False)
        return run_item(Item(items(2)[0].requirement, "TestOne::test_one", case), Subject(harness))

    return run


def held(backend: ak.Backend, kind: type[Harness] = Harness) -> Harness:
    return kind(backend.name, backend, backend)


def is_true(_self: object, backend: Subject, case: Case) -> None:
    backend.assert_true(case, case.call(backend))


def raising(error: Exception) -> Check:
    def check(_self: object, backend: Subject, case: Case) -> None:
        raise error

    return check


def declaring(**fields: Any) -> type[Plain]:
    return type("Declaring", (Plain,), {"declared": replace(EVERYTHING, **fields)})


def test_what_is_right_passes(run: Callable[..., Result]) -> None:
    found = run(is_true, held(Plain()))
    assert (found.status, found.outcome, found.message) == ("PASS", "answered", "")
    assert found.comparisons >= 2
    assert found.worst is not None
    assert 0 < found.worst.ratio <= 1


def test_what_is_wrong_fails(run: Callable[..., Result]) -> None:
    found = run(is_true, held(type("Zero", (Plain,), {"finish": lambda self, out, query, request: 0 * out})()))
    assert found.status == "FAIL"
    assert found.message.startswith("Mismatch: output: ")
    assert found.worst is not None
    assert found.worst.ratio > 1


def test_nothing_compared_is_the_suites_fault(run: Callable[..., Result]) -> None:
    found = run(lambda self, backend, case: None, held(Plain()))
    assert (found.status, found.message) == ("ERROR", "nothing was compared")


@pytest.mark.parametrize(
    ("error", "there", "here"),
    [
        (AssertionError("wrong"), "FAIL", "FAIL"),
        (ak.ShapeError("odd"), "FAIL", "FAIL"),
        (BackendError("odd"), "FAIL", "FAIL"),
        (IndexError("odd"), "ERROR", "FAIL"),
        (BackendDied("signal SIGSEGV"), "CRASH", "CRASH"),
        (BackendHung("no answer"), "TIMEOUT", "TIMEOUT"),
    ],
    ids=repr,
)
def test_whose_fault_an_error_is(run: Callable[..., Result], error: Exception, there: str, here: str) -> None:
    assert run(raising(error), held(Plain(), Remote)).status == there
    assert run(raising(error), held(Plain())).status == here


def test_a_note_on_an_error_is_part_of_the_message(run: Callable[..., Result]) -> None:
    error = BackendError("odd")
    error.add_note("raised at mine.py:7, in attention")
    assert run(raising(error), held(Plain())).message == "BackendError: odd\nraised at mine.py:7, in attention"


def test_a_lost_process_cannot_be_taken_for_an_error_that_was_expected(run: Callable[..., Result]) -> None:
    harness = held(Plain(), Remote)

    def check(_self: object, backend: Subject, case: Case) -> None:
        is_true(_self, backend, case)
        harness.gone = BackendDied("exit status 3")

    assert run(check, harness).status == "CRASH"


def test_a_path_that_keeps_out(run: Callable[..., Result]) -> None:
    found = run(is_true, open_target("numpy:decode"), replace(CASE, queries=200))
    assert found.status == "PASS"
    assert found.outcome.startswith("outside ")


def test_what_nobody_can_ask_is_not_run(run: Callable[..., Result]) -> None:
    def check(_self: object, backend: Subject, case: Case) -> None:
        backend.harness.vjp({}, (), ())

    found = run(check, held(declaring(grad=True)()), graded([CASE])[0])
    assert found.status == "NOT_RUN"
    assert found.outcome.startswith("unchecked ")
    assert run(check, held(Plain())).status == "FAIL", "no gradient was asked for"


def test_what_is_not_declared_must_be_refused(run: Callable[..., Result]) -> None:
    found = run(is_true, held(declaring(softcap=False)()), SOFTCAPPED)
    assert (found.status, found.outcome) == ("PASS", "refused softcap")

    class Ignoring(declaring(softcap=False)):  # type: ignore[misc]  # a class that is made
        def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
            return []

    found = run(is_true, held(Ignoring()), SOFTCAPPED)
    assert found.status == "FAIL"
    assert "not declared, yet the call gave a result" in found.message


def test_a_refusal_leaves_its_arguments_alone(run: Callable[..., Result]) -> None:
    class Late(declaring(softcap=False)):  # type: ignore[misc]  # a class that is made
        touches = True

        def unsupported(self, request: ak.AttentionRequest, path: str | None = None) -> list[ak.Reason]:
            return []

        def attention(self, query: Any, key: Any, value: Any, operands: Any, request: Any) -> Any:
            if self.touches:
                key[0, 0, 0, 0] = 7
            reasons = super().unsupported(request)
            raise ak.UnsupportedError("too late:", {"late": tuple(reasons)})

    found = run(is_true, held(Late()), SOFTCAPPED)
    assert found.status == "FAIL"
    assert "an argument after the call was refused" in found.message
    untouched = type("Untouched", (Late,), {"touches": False})
    assert run(is_true, held(untouched()), SOFTCAPPED).status == "PASS"


def test_who_declares_nothing_gets_a_result_all_the_same(run: Callable[..., Result]) -> None:
    found = run(is_true, held(declaring(dtypes=frozenset())()))
    assert (found.status, found.outcome, found.dtype) == ("PASS", "refused dtypes", "float32")


def test_an_unknown_profile_buys_nothing(run: Callable[..., Result]) -> None:
    found = run(is_true, held(declaring(numerics=dict.fromkeys(EVERYTHING.numerics, "whatever"))(), Remote))
    assert found.status == "FAIL"
    assert "whatever" in found.message


def test_what_was_not_run_says_why() -> None:
    item = items(2)[0]
    found = not_run(item, "no device")
    assert (found.id, found.status, found.outcome) == (item.id, "NOT_RUN", "no device")
    assert not np.isnan(found.seconds)
