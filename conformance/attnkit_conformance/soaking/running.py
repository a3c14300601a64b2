"""Running histories from a seed; one that fails is made short by leaving steps out, and told as a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import numpy as np

from attnkit_conformance.soaking.machine import OPERATIONS, Machine, Step
from attnkit_conformance.soaking.setting import Setting

Outcome = tuple[Counter[str], Exception | None]
"""How many of each operation went well, and what the next step raised."""
_SHOWN = 40
_EFFORT = 1000  # steps that may go into leaving some out


def soak(setting: Setting, seed: int, steps: int) -> Counter[str]:
    """Take random steps, the same ones for the same seed; gives how many of each operation were taken.

    Raises
    ------
    AssertionError
        With the seed, the steps that are needed, and what they do, as soon as something is not as it must be.
    """
    drawn = list(_drawn(seed, steps))
    taken, error = _run(setting, drawn)
    if error is not None:
        _fail(setting, seed, drawn[: taken.total() + 1], error)
    return taken


def replay(setting: Setting, steps: Sequence[tuple[str, int]]) -> None:
    """Take given steps, as a failure told them with the name of its setting.

    Raises
    ------
    Exception
        What the last one of them raises.
    """
    _, error = _run(setting, [Step(*step) for step in steps])
    if error is not None:
        raise error


def _drawn(seed: int, steps: int) -> Iterator[Step]:
    rng = np.random.default_rng(seed)
    weights = np.array(list(OPERATIONS.values()))
    names = rng.choice(list(OPERATIONS), size=steps, p=weights / weights.sum())
    return (Step(str(name), int(number)) for name, number in zip(names, rng.integers(2**31, size=steps), strict=True))


def _run(setting: Setting, steps: Sequence[Step], program: list[str] | None = None) -> Outcome:
    """Take steps, and add what is done to a program."""
    taken: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        machine = Machine(setting, Path(folder))
        try:
            for step in steps:
                taken[machine.do(step)] += 1
        except Exception as error:  # whatever a cache raises that it must not raise is a finding
            return taken, error
        finally:
            if program is not None:
                program += machine.program
    return taken, None


def _fail(setting: Setting, seed: int, steps: Sequence[Step], error: Exception) -> NoReturn:
    short = _shortened(setting, steps, error)
    program: list[str] = []
    found = _run(setting, short, program)[1] or error  # where it fails now and then
    left_out = [f"... {len(program) - _SHOWN} lines before"] if len(program) > _SHOWN else []
    told = "\n    ".join([*left_out, *program[-_SHOWN:]])
    raise AssertionError(
        f"{setting.name}, seed {seed}, step {len(steps)}: {type(found).__name__}: {found}\n"
        f"  after {len(short)} of {len(steps)} steps:\n    {told}\n"
        f"  replay(setting, {[tuple(step) for step in short]})"
    ) from found


def _shortened(setting: Setting, steps: Sequence[Step], error: Exception) -> list[Step]:
    """Leave out steps, half of them at a time and ever fewer, as long as an error of the same kind is raised."""
    kept, size, left = list(steps), len(steps) // 2, _EFFORT
    while size and left > 0:
        start = 0
        while start < len(kept) and left > 0:
            shorter = kept[:start] + kept[start + size :]
            taken, found = _run(setting, shorter)
            left -= taken.total() + 1
            if type(found) is type(error):
                kept = shorter[: taken.total() + 1]
            else:
                start += size
        size //= 2
    return kept
