"""The mutation gate: every requirement catches the faults that it names, and every fault is named by some requirement.

A pair of a requirement and a fault is *killed* by the first item of the requirement that fails on the faulty backend.
The table of all pairs is the kill matrix: faults down, requirements across.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from attnkit_conformance.haste import hastily
from attnkit_conformance.items import Item, items
from attnkit_conformance.requirements import requirements
from attnkit_conformance.selftest.faults import Mutant
from attnkit_conformance.selftest.mutants import BY_NAME
from attnkit_conformance.selftest.running import failure
from attnkit_conformance.subject import Subject

Step = Callable[[str], None]
Pair = tuple[str, str]
"""Id of a requirement, and name of a fault."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What came of a requirement's items on a faulty backend.

    Attributes
    ----------
    requirement, mutant
        The pair.
    item
        Id of the item that failed, the last that was run; empty where all passed.
    message
        How it failed.
    tried
        How many items were run.
    seconds
        Wall time.
    """

    requirement: str
    mutant: str
    item: str
    message: str
    tried: int
    seconds: float

    @property
    def killed(self) -> bool:
        """The requirement catches the fault."""
        return bool(self.item)


@dataclass(frozen=True, slots=True)
class KillMatrix:
    """What the gate found.

    Attributes
    ----------
    kills
        One for each pair that was run.
    named
        The pairs that ``requirements.toml`` names.
    mutants
        Names of all faults that must be named.
    """

    kills: tuple[Kill, ...]
    named: frozenset[Pair]
    mutants: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Every named pair is killed, and every fault is named."""
        return not self.problems()

    def problems(self) -> list[str]:
        """Say what is wrong: pairs that survive, faults that nobody names, names of no fault."""
        survive = [kill for kill in self.kills if not kill.killed and (kill.requirement, kill.mutant) in self.named]
        by_name = {mutant for _, mutant in self.named}
        return [
            *(f"{kill.mutant} survives {kill.requirement} ({kill.tried} items)" for kill in survive),
            *(f"{name} is named by no requirement" for name in self.mutants if name not in by_name),
            *(f"{name}: there is no such fault" for name in sorted(by_name - set(self.mutants))),
        ]

    def table(self) -> dict[str, dict[str, bool]]:
        """Give the kill matrix: by name of a fault and id of a requirement, whether it was killed."""
        table: dict[str, dict[str, bool]] = defaultdict(dict)
        for kill in self.kills:
            table[kill.mutant][kill.requirement] = kill.killed
        return dict(table)

    def lines(self) -> Iterator[str]:
        """Give the matrix as text: for each fault, the requirements that kill it and those that do not."""
        for mutant, row in sorted(self.table().items()):
            killed = [name for name, dead in row.items() if dead]
            alive = [name for name, dead in row.items() if not dead and (name, mutant) in self.named]
            said = f"{mutant}: killed by {', '.join(killed) or 'none'}"
            yield f"{said}; SURVIVES {', '.join(alive)}" if alive else said
        yield self.summary()
        yield from self.problems()

    def summary(self) -> str:
        """Give the numbers in a line."""
        dead, ran = sum(kill.killed for kill in self.kills), len(self.kills)
        return f"{len(self.mutants)} faults, {len(self.named)} named pairs; {dead} of {ran} pairs that ran are killed"


def kill_matrix(
    *, full: bool = False, only: Iterable[str] = (), seed: int = 0, on_step: Step | None = None
) -> KillMatrix:
    """Run the gate.

    Parameters
    ----------
    full
        Run every requirement on every fault, and not only the pairs that are named: an hour, for releases.
    only
        Names of faults, or ids of requirements; all by default.
    seed
        Seed of the run.
    on_step
        Told of progress, a line for each requirement.
    """
    named = frozenset((item.id, name) for item in requirements() for name in item.mutants)
    chosen, kills = set(only), []
    for requirement in requirements():
        names = [name for name in BY_NAME if full or (requirement.id, name) in named]
        names = [name for name in names if not chosen or chosen & {name, requirement.id}]
        found = [kill(BY_NAME[name], requirement.id, seed=seed) for name in names]
        kills += found
        if on_step is not None and found:
            seconds = sum(one.seconds for one in found)
            on_step(f"{requirement.id}: {sum(one.killed for one in found)} of {len(found)} killed in {seconds:.1f} s")
    return KillMatrix(tuple(kills), named, tuple(BY_NAME))


def kill(mutant: Mutant, requirement: str, *, seed: int = 0) -> Kill:
    """Run the items of a requirement on a faulty backend until one fails."""
    started = time.perf_counter()
    tried, caught, error = first_failure(mutant.subject(), cheapest_first(requirement, seed))
    message = "" if error is None else f"{type(error).__name__}: {error}"
    return Kill(requirement, mutant.name, caught.id if caught else "", message, tried, time.perf_counter() - started)


def first_failure(subject: Subject, chosen: Sequence[Item]) -> tuple[int, Item | None, Exception | None]:
    """Run items until one fails; give how many were run, which one failed, and how, in the first words for it."""
    with warnings.catch_warnings(), hastily():
        warnings.simplefilter("ignore")  # a fault is caught by what it gives, not by what NumPy thinks of it
        for number, item in enumerate(chosen, 1):
            error = failure(subject, item)
            if error is not None:
                return number, item, error
    return len(chosen), None, None


@cache
def level_by_level(level: int = 3, seed: int = 0) -> tuple[Item, ...]:
    """Give all items up to a level, the lowest level first, requirement by requirement in the order of the file."""
    chosen = sorted((item for item in requirements() if item.level <= level), key=lambda item: item.level)
    return tuple(item for requirement in chosen for item in cheapest_first(requirement.id, seed))


@cache
def cheapest_first(requirement: str, seed: int = 0) -> tuple[Item, ...]:
    """Give the items of a requirement, those of small cases and of rare tests first."""
    own = [item for item in items(seed=seed) if item.requirement.id == requirement]
    place: Counter[str] = Counter()
    ranked = []
    for item in sorted(own, key=cost):
        ranked.append((place[item.test], cost(item), item))
        place[item.test] += 1
    return tuple(item for *_, item in sorted(ranked, key=lambda entry: entry[:2]))


def cost(item: Item) -> float:
    """Estimate what an item costs, by the size of its case."""
    case = item.case
    return float(prod(max(1, size) for size in (case.batch, case.heads, case.queries, case.keys, case.head_dim)))
