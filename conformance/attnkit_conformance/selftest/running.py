"""The suite's checks as plain functions, so that a hundred backends can be judged in one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from attnkit_conformance import suite
from attnkit_conformance.subject import Subject

CLASSES: dict[str, type[Any]] = {name: getattr(suite, name) for name in suite.__all__}


def checks(name: str) -> Iterator[tuple[str, Any]]:
    """Give the checks of ``Class`` or ``Class::test``: a name, and a function of a backend, for each case."""
    kind, _, wanted = name.partition("::")
    for test, method in vars(CLASSES[kind]).items():
        if test.startswith("test_") and wanted in ("", test):
            for case in method.cases:
                yield f"{kind}::{test}[{case}]", partial(method, CLASSES[kind](), case=case)


def failures(subject: Subject, name: str) -> Iterator[tuple[str, Exception]]:
    """Run the checks of ``Class`` or ``Class::test``, and give the name and the error of those that fail."""
    for check, run in checks(name):
        try:
            run(backend=subject)
        except Exception as error:
            yield check, error
