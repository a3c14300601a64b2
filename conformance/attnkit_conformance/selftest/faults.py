"""Mutant, a backend that is wrong on purpose, and how one is made: ``Plain`` with a small method replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnkit_conformance.harness.local import Harness
from attnkit_conformance.selftest.plain import Array, Plain, unregistered
from attnkit_conformance.subject import Subject


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault.

    Attributes
    ----------
    name
        What is wrong.
    killer
        The class, or ``Class::test``, that must catch it.
    subject
        Makes the faulty backend.
    """

    name: str
    killer: str
    subject: Callable[[], Subject]

    def __str__(self) -> str:
        return self.name


def fault(name: str, killer: str, parent: type[Plain] = Plain, **members: Any) -> Mutant:
    """Make a mutant of a backend with other members."""
    kind = type(name.title(), (parent,), {"name": name.replace("_", "-"), **members})
    return Mutant(name, killer, lambda: unregistered(kind()))


def harnessed(name: str, killer: str, kind: type[Harness]) -> Mutant:
    """Make a mutant of what lies between the correct backend and its callers."""
    return Mutant(name, killer, lambda: Subject(kind(name.replace("_", "-"), Plain(), Plain())))


def first(array: Array, axis: int) -> Array:
    """Read only index 0 of an axis."""
    return array[(slice(None),) * axis + (slice(0, 1),)]
