"""How a check is written: a method of a ``Checks`` class, run over cases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from attnkit_conformance.cases import Case
from attnkit_conformance.subject import Subject

AnyCase = TypeVar("AnyCase", bound=Case)
Check = Callable[[Any, Subject, AnyCase], None]


class Checks:
    """Base of the suite's classes; the mark is how the pytest plug-in tells them from other tests."""

    pytestmark = pytest.mark.attnkit


def over(cases: Sequence[AnyCase]) -> Callable[[Check[AnyCase]], Any]:
    """Run a check for every case; where a backend does not declare what a case needs, it must refuse the call."""

    def decorate(check: Check[AnyCase]) -> Any:
        @functools.wraps(check)
        def run(self: Checks, backend: Subject, case: AnyCase) -> None:
            __tracebackhide__ = True
            backend.judge(case, lambda settled: check(self, backend, settled))  # type: ignore[arg-type]  # the same class

        return pytest.mark.parametrize("case", cases, ids=str)(run)

    return decorate
