"""How a check is written: a method of a ``Checks`` class, run over cases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from attnkit_conformance.cases import AnyCase
from attnkit_conformance.subject import Subject


class Checks:
    """Base of the suite's classes; the mark is how the pytest plug-in tells them from other tests."""

    is_attnkit_check = True


def over(cases: Sequence[AnyCase]) -> Callable[[Callable[[Any, Subject, AnyCase], None]], Any]:
    """Run a check for every case; where a backend does not declare what a case needs, it must refuse the call."""

    def decorate(check: Callable[[Any, Subject, AnyCase], None]) -> Any:
        @functools.wraps(check)
        def run(self: Checks, backend: Subject, case: AnyCase) -> None:
            __tracebackhide__ = True
            backend.judge(case, functools.partial(check, self, backend))

        run.cases = tuple(cases)  # type: ignore[attr-defined]  # what the fronts run it over
        return run

    return decorate
