"""How Hypothesis is run here: from a seed, in silence, without a database and without a clock.

Needs ``hypothesis``; import it only to explore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from hypothesis import HealthCheck, Phase, Verbosity, settings

from attnkit_conformance.haste import is_hasty
from attnkit_conformance.measuring import Comparison, measuring, note


def explorer(examples: int, steps: int = 50) -> settings:
    """Give settings for so many examples, or histories of so many steps; what fails is shrunk, and raised as it is.

    Where it is run ``hastily``, it is not shrunk.
    """
    shrinking = () if is_hasty() else (Phase.shrink,)
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        derandomize=False,  # the seed is given by whoever runs it
        phases=(Phase.generate, Phase.target, *shrinking),
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )


@contextmanager
def last_failure_only() -> Iterator[Callable[[], None]]:
    """Gather comparisons; give what begins an example: it forgets the failures before, which were larger ones."""
    notes: list[Comparison] = []
    try:
        with measuring() as notes:
            yield partial(_forget_failures, notes)
    finally:
        for comparison in notes:
            note(comparison)


def _forget_failures(notes: list[Comparison]) -> None:
    notes[:] = [comparison for comparison in notes if comparison.ratio <= 1]
