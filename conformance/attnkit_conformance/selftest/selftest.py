"""The self-test: whether the suite still finds what it must find, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from attnkit_conformance.items import items
from attnkit_conformance.selftest.correct import CORRECT, false_alarms
from attnkit_conformance.selftest.effects import published, regressions
from attnkit_conformance.selftest.gate import kill_matrix
from attnkit_conformance.selftest.known_faults import KNOWN_FAULTS, mistakes
from attnkit_conformance.selftest.oracles import agreements
from attnkit_conformance.selftest.report import SelfTest, Step
from attnkit_conformance.selftest.trials import trials

Tell = Callable[[str], None]
Part = Callable[[Tell, bool], tuple[Iterable[str], Iterable[str]]]
"""What was found, and what is wrong."""

SAMPLE = 0.05
"""Share of the items that correct backends are asked; all of them with ``full``."""
FEW = ("ATTN-MASK-001", "ATTN-NUM-002", "ATTN-BIAS-001", "ATTN-LSE-001", "ATTN-GRAD-001", "ATTN-CACHE-ATTEND-002")
"""Requirements whose effects are measured again; all of them with ``full``."""


def run_selftest(on_step: Tell | None = None, *, full: bool = False) -> SelfTest:
    """Hold the suite to account.

    Parameters
    ----------
    on_step
        Told of progress in words.
    full
        Every item on every correct backend, every requirement on every fault, and every effect: hours.
    """
    tell = on_step or (lambda _: None)
    return SelfTest(tuple(_timed(name, part, tell, full) for name, part in _PARTS.items()))


def _timed(name: str, part: Part, tell: Tell, full: bool) -> Step:
    tell(name)
    started = time.perf_counter()
    found, problems = (tuple(lines) for lines in part(tell, full))
    return Step(name, found, problems, time.perf_counter() - started)


def _oracles(tell: Tell, full: bool) -> tuple[list[str], list[str]]:
    del tell, full
    every = list(agreements())
    return [str(one) for one in every if one.ok], [str(one) for one in every if not one.ok]


def _correct(tell: Tell, full: bool) -> tuple[list[str], list[str]]:
    share = 1.0 if full else SAMPLE
    problems = []
    for name in CORRECT:
        tell(f"correct: {name}")
        problems += [f"{name} fails {item.id}: {error}" for _, item, error in false_alarms(share, names=[name])]
    return [f"{len(CORRECT)} correct backends, {len(items(sample=share))} items each"], problems


def _miniatures(tell: Tell, full: bool) -> tuple[list[str], list[str]]:
    every = []
    for trial in trials(full=full):
        tell(str(trial))
        every.append(trial)
    return [str(trial) for trial in every if trial.ok], [str(trial) for trial in every if not trial.ok]


def _known(tell: Tell, full: bool) -> tuple[list[str], Iterator[str]]:
    del tell, full
    return [f"{fault}: {fault.requirement}" for fault in KNOWN_FAULTS], mistakes()


def _gate(tell: Tell, full: bool) -> tuple[list[str], list[str]]:
    matrix = kill_matrix(full=full, on_step=tell)
    return [matrix.summary()], matrix.problems()


def _effects(tell: Tell, full: bool) -> tuple[list[str], Iterable[str]]:
    return [f"{len(published())} requirements have a published effect"], regressions(None if full else FEW, tell)


_PARTS: dict[str, Part] = {
    "the oracles agree": _oracles,
    "correct backends pass": _correct,
    "bad miniatures get their verdicts": _miniatures,
    "known faults of libraries are rejected": _known,
    "every fault is caught": _gate,
    "the smallest effects are as published": _effects,
}
