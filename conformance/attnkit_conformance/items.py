"""Items: every single check of the suite, one case of one test each, and the manifest of a run.

Which items there are depends on the level and the seed alone, never on the backend: what a backend does not declare
turns an item into its negation, a refusal. So a report can be checked for completeness without the backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from attnkit_conformance import suite
from attnkit_conformance.cases import Case
from attnkit_conformance.requirements import Requirement, digest, find
from attnkit_conformance.subject import Subject


@dataclass(frozen=True, eq=False)
class Item:
    """One case of one test.

    Attributes
    ----------
    requirement
        What it is about.
    test
        ``"TestClass::test_name"``.
    case
        The case.
    """

    requirement: Requirement
    test: str
    case: Case

    def __str__(self) -> str:
        return self.id

    @property
    def id(self) -> str:
        """Its name in reports, waivers and on the command line."""
        return f"{self.requirement.id}/{self.test}[{self.case}]"

    @property
    def fingerprint(self) -> str:
        """Twelve digits that stand for it."""
        return hashlib.sha256(f"{self.case.seed} {self.id}".encode()).hexdigest()[:12]

    def run(self, subject: Subject) -> None:
        """Check a backend; raises where it fails."""
        kind, _, name = self.test.partition("::")
        check: Any = getattr(suite, kind)()
        getattr(check, name)(backend=subject, case=self.case)


def items(level: int = 3, *, seed: int = 0, sample: float = 1.0) -> list[Item]:
    """Give all items up to a level, or a share of them that the seed chooses."""
    chosen = [item for item in _all(seed) if item.requirement.level <= level]
    return chosen if sample >= 1 else [item for item in chosen if int(item.fingerprint, 16) < sample * 16**12]


def manifest_digest(ids: Iterable[str], requirements: str = "") -> str:
    """Give the SHA-256 of the requirements, by default our own, and of the ids of a run in whatever order they come."""
    return hashlib.sha256("\n".join([requirements or digest(), *sorted(ids)]).encode()).hexdigest()


def tests() -> Iterator[tuple[str, tuple[Case, ...]]]:
    """Give every test, as ``"TestClass::test_name"``, and its cases."""
    for kind in suite.__all__:
        for name, method in vars(getattr(suite, kind)).items():
            if name.startswith("test_"):
                yield f"{kind}::{name}", method.cases


@cache
def _all(seed: int) -> tuple[Item, ...]:
    return tuple(
        Item(find(test, str(case)), test, replace(case, seed=seed) if seed else case)
        for test, cases in tests()
        for case in cases
    )
