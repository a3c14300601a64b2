"""Requirements: what the suite demands, as data (``requirements.toml``), and which checks hold a backend to each.

The documentation, the manifest and every report are made from it. An id is never reused and never renumbered.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

LEVELS = {0: "harness", 1: "core", 2: "declared", 3: "quality"}


@dataclass(frozen=True, slots=True)
class Selector:
    """The cases of one test that belong to a requirement.

    Attributes
    ----------
    test
        ``"TestClass::test_name"``.
    patterns
        Shell patterns for the names of its cases; none for all cases that no other requirement names.
    """

    test: str
    patterns: tuple[str, ...] = ()

    def names(self, test: str, case: str) -> bool:
        """Tell whether it names a case by one of its patterns."""
        return test == self.test and any(fnmatchcase(case, pattern) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One rule that a backend is held to.

    Attributes
    ----------
    id
        Stable name, such as ``"ATTN-CAUSAL-001"``.
    title
        A few words.
    since
        The version of the contract that it came with.
    rules
        The rules of ``docs/contract.md`` that it stands for.
    level
        0 harness, 1 core, 2 declared, 3 quality.
    when
        Names of the capabilities that it is about, joined by `` & ``; empty for always. Where a backend lacks one of
        them, the calls must be refused with its name.
    statement
        What must hold, in a sentence or two.
    checks
        Which cases of which tests belong to it.
    mutants
        Names of the faults that it must catch.
    """

    id: str
    title: str
    since: str
    rules: tuple[str, ...]
    level: int
    when: str
    statement: str
    checks: tuple[Selector, ...]
    mutants: tuple[str, ...]

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities in ``when``."""
        return tuple(name.strip() for name in self.when.split("&") if name.strip())


@cache
def requirements() -> tuple[Requirement, ...]:
    """Give all requirements in the order of the file."""
    return tuple(_requirement(entry) for entry in tomllib.loads(_text())["requirement"])


@cache
def digest() -> str:
    """Give the SHA-256 of the file."""
    return hashlib.sha256(_text().encode()).hexdigest()


def find(test: str, case: str) -> Requirement:
    """Give the one requirement that a case of a test belongs to.

    Raises
    ------
    LookupError
        If there is none, or more than one.
    """
    named = [item for item in requirements() if any(selector.names(test, case) for selector in item.checks)]
    rest = [item for item in requirements() if any(s.test == test and not s.patterns for s in item.checks)]
    found = named or rest
    if len(found) != 1:
        ids = ", ".join(item.id for item in found) or "none"
        raise LookupError(f"{test}[{case}] must belong to exactly one requirement, got {ids}")
    return found[0]


def _text() -> str:
    return (files("attnkit_conformance") / "requirements.toml").read_text("utf-8")


def _requirement(entry: dict[str, Any]) -> Requirement:
    checks = [Selector(test, tuple(patterns)) for test, *patterns in map(str.split, entry["checks"])]
    return Requirement(
        id=entry["id"],
        title=entry["title"],
        since=entry.get("since", "1.0"),
        rules=tuple(entry["rules"]),
        level=entry["level"],
        when=entry.get("when", ""),
        statement=entry["statement"],
        checks=tuple(checks),
        mutants=tuple(entry.get("mutants", ())),
    )
