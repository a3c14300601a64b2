"""SelfTest: what the suite makes of backends about which all is known, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the self-test.

    Attributes
    ----------
    name
        What was asked.
    found
        What was found, a line each.
    problems
        What is wrong, a line each; empty where all is well.
    seconds
        Wall time.
    """

    name: str
    found: tuple[str, ...]
    problems: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def lines(self) -> Iterator[str]:
        """Give it as text."""
        yield f"{'ok' if self.ok else 'WRONG'}: {self.name} ({self.seconds:.1f} s)"
        yield from (f"  {line}" for line in self.found)
        yield from (f"  WRONG: {line}" for line in self.problems)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """All parts of the self-test."""

    steps: tuple[Step, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong anywhere."""
        return all(step.ok for step in self.steps)

    def lines(self) -> Iterator[str]:
        """Give it as text."""
        for step in self.steps:
            yield from step.lines()
        wrong = sum(not step.ok for step in self.steps)
        yield "the suite catches what it must" if self.ok else f"{wrong} of {len(self.steps)} steps are wrong"
