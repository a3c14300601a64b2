"""The decode chain: a thousand steps of a cache, each of which selects the next by its own output.

Axes: ``B`` sequences, ``H`` query heads, ``E`` value head size, ``t`` step.

Each step first does its operation (``append``: nothing, ``truncate N``: keep N tokens, ``reorder 1 0``: the sequences
change places), then appends its key and value, then attends with its query to the last ``WINDOW`` tokens. The key of a
token at position ``p`` is 1 at place ``p mod WINDOW``; the query is 1024 at one place, so that the output is the value
of one token: multiples of 1/8, which come out exactly when the output, which may be off by its bound, is rounded to
them. Which place that is follows from the outputs before, by the rule of ``chain_rule``.

Open loop: the queries are given. Closed loop: only that of step 0 is taken, the others follow by the rule. The outputs
are the same either way; in a closed loop, a fault of the state at any step derails all steps after it.

The arrays of the case are by sequence: ``reorder`` moves a sequence to another row of the cache, and from then on its
query, key, value and output belong to that row. As one call, the chain is a dense mask ``[T, S]`` with a row and a key
for each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.vectors.chain_rule import AMPLITUDE, START, WINDOW, address, following
from attnkit_conformance.vectors.generating import bell, choice

Array = np.ndarray[Any, Any]
STEPS: Final = 1000
NAME: Final = "chain"
_HEADS: Final = 2


@dataclass(frozen=True, slots=True)
class Step:
    """What happens before a step's token is appended: ``"append"``, ``"truncate"`` or ``"reorder"``, and to what."""

    operation: str
    tokens: int  # after the operation and the append

    def __str__(self) -> str:
        argument = {"append": "", "truncate": f" {self.tokens - 1}", "reorder": " 1 0"}[self.operation]
        return f"{self.operation}{argument}"


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The chain as one case, and what happens at each step."""

    case: Case
    steps: tuple[Step, ...]

    def lines(self) -> str:
        """Give the steps as a table: step, operation, tokens after the append."""
        rows = (f"{t}\t{step}\t{step.tokens}\n" for t, step in enumerate(self.steps))
        return "step\toperation\ttokens\n" + "".join(rows)


def chain(dtype: str, steps: int = STEPS) -> Chain:
    """Make the chain in an element type."""
    happening = _steps(steps)
    keys = np.stack([np.eye(WINDOW)[(step.tokens - 1) % WINDOW] for step in happening])
    values = bell(f"{NAME}/value", (2, 1, steps, WINDOW))
    visible = _visible(happening)
    queries = np.zeros((2, _HEADS, steps, WINDOW))
    registers = np.full((2, _HEADS), START, np.int64)
    for t, step in enumerate(happening):
        for b, h in np.ndindex(registers.shape):
            place = address(int(registers[b, h]), step.tokens)
            token = next(j for j in np.flatnonzero(visible[t]) if keys[j, place])
            queries[b, h, t, place] = AMPLITUDE
            registers[b, h] = following(int(registers[b, h]), values[b, 0, token])
    sizes = {"batch": 2, "heads": _HEADS, "kv_heads": 1, "queries": steps, "keys": steps, "head_dim": WINDOW}
    options = {"mask": ak.Mask.dense(visible), "scale": 1.0}
    case = Case(label=NAME, dtype=dtype, pinned=("dtype", "head_dim"), options=options, **sizes)  # type: ignore[arg-type]
    held = case.holding((queries, np.broadcast_to(keys, (2, 1, steps, WINDOW)), values))
    return Chain(held, tuple(happening))


def _steps(count: int) -> list[Step]:
    """Cut one to four tokens at every sixteenth step or so, once there are enough, and reorder as often."""
    dice, tokens, found = choice(f"{NAME}/operation", (count, 2), 16), 0, list[Step]()
    for t in range(count):
        operation = {0: "truncate", 1: "reorder"}.get(int(dice[t, 0]), "append")
        if operation == "truncate" and tokens <= 2 * WINDOW:
            operation = "append"
        tokens += 1 if operation != "truncate" else -(int(dice[t, 1]) % 4)
        found.append(Step(operation, tokens))
    return found


def _visible(steps: list[Step]) -> Array:
    """Tell which step's token each step sees, ``[T, S]``."""
    held: list[int] = []
    shown = np.zeros((len(steps), len(steps)), np.bool_)
    for t, step in enumerate(steps):
        held = [*held[: step.tokens - 1], t]
        shown[t, held[-WINDOW:]] = True
    return shown
