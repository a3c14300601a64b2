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
PROMISES = frozenset({"libraries", "devices", "poison", "deterministic", "batch_invariant", "numerics"})
"""Capabilities that are kept rather than refused: what is declared of them decides what is checked."""


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

    def names(self, case: str) -> bool:
        """Tell whether it names a case of its test by one of its patterns."""
        return any(fnmatchcase(case, pattern) for pattern in self.patterns)


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
        them that is no promise, the calls must be refused with its name.
    statement
        What must hold, in a sentence or two.
    checks
        Which cases of which tests belong to it.
    mutants
        Names of the faults, of ``selftest.mutants``, that it must catch.
    no_mutant
        Why it names none.
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
    no_mutant: str = ""

    @property
    def area(self) -> str:
        """What it belongs to, such as ``"CAUSAL"``."""
        return self.id.split("-")[1]

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities in ``when``."""
        return tuple(name.strip() for name in self.when.split("&") if name.strip())

    @property
    def needs(self) -> tuple[str, ...]:
        """Those of them without which its calls must be refused."""
        return tuple(name for name in self.capabilities if name not in PROMISES)


@cache
def requirements() -> tuple[Requirement, ...]:
    """Give all requirements in the order of the file."""
    return tuple(_requirement(entry) for entry in _data()["requirement"])


@cache
def areas() -> dict[str, str]:
    """Give the areas in the order of the file, and what each is about."""
    named = {requirement.area: requirement.area for requirement in requirements()}
    return {area: _data()["areas"].get(area, title) for area, title in named.items()}


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
    named = [item for item, selector in _selectors(test) if selector.names(case)]
    found = list(dict.fromkeys(named)) or [item for item, selector in _selectors(test) if not selector.patterns]
    if len(found) != 1:
        ids = ", ".join(item.id for item in found) or "none"
        raise LookupError(f"{test}[{case}] must belong to exactly one requirement, got {ids}")
    return found[0]


@cache
def _selectors(test: str) -> tuple[tuple[Requirement, Selector], ...]:
    """Give the selectors of a test, and whose they are."""
    return tuple((item, selector) for item in requirements() for selector in item.checks if selector.test == test)


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(_text())


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
        no_mutant=entry.get("no_mutant", ""),
    )
