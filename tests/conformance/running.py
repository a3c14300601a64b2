"""The suite's checks as plain functions, so that a hundred backends can be judged in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from attnkit_conformance import suite
from attnkit_conformance.subject import Subject

Checks = type[Any]
CLASSES: dict[str, Checks] = {name: getattr(suite, name) for name in suite.__all__}


def checks(kind: Checks) -> Iterator[tuple[str, Any]]:
    """Give names and functions of a backend, for each test of a class and each of its cases."""
    for name, method in vars(kind).items():
        if name.startswith("test_"):
            (mark,) = method.pytestmark
            argument, cases = mark.args
            for case in cases:
                yield f"{kind.__name__}::{name}[{case}]", partial(method, kind(), **{argument: case})


def failures(subject: Subject, kinds: Iterable[str] = tuple(CLASSES)) -> Iterator[tuple[str, Exception]]:
    """Run checks, and give the name and the error of those that fail."""
    for kind in kinds:
        for name, check in checks(CLASSES[kind]):
            try:
                check(backend=subject)
            except Exception as error:
                yield name, error
