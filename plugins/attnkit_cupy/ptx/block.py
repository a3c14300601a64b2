"""One block of threads: which instruction runs next, and for whom.

Threads step with the lowest program counter first, which brings the sides of a branch together again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit_cupy.ptx import warp
from attnkit_cupy.ptx.arithmetic import compute, computes
from attnkit_cupy.ptx.memory import Memory
from attnkit_cupy.ptx.program import Instruction, Program, PtxError
from attnkit_cupy.ptx.values import TYPES, Lanes, Registers, bits_of, vector, widened

_UPDATES: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda _, new: new,
}
_LEAVING = ("ret", "exit")
_ADDRESS = re.compile(r"\[([^+\]]+?)\s*(?:\+\s*(-?\w+))?\]")


class Copy(NamedTuple):
    """An asynchronous copy that has not landed: its group, addresses, bytes to read and the threads that asked."""

    group: int
    target: Lanes
    source: Lanes
    read: Lanes
    active: Lanes
    text: str


class Block:
    """A block while it runs.

    Parameters
    ----------
    program
        What its threads run.
    special
        The read-only registers, ``[N]`` each.
    memory
        What they can reach.
    eager
        Whether asynchronous copies land at once; otherwise they land when they are waited for, as late as they may.
    """

    def __init__(self, program: Program, special: Mapping[str, Lanes], memory: Memory, *, eager: bool) -> None:
        self._program = program
        self._memory = memory
        self._eager = eager
        self._threads = len(special["%tid.x"])
        self._registers = Registers(special, self._threads)
        self._copies: list[Copy] = []
        self._group = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Run all threads to their end."""
        counters, alive = np.zeros(self._threads, np.int64), np.ones(self._threads, bool)
        waiting, barrier = np.zeros(self._threads, bool), -1
        while alive.any():
            running = alive & ~waiting
            if not running.any():
                if not alive.all():
                    raise PtxError("threads wait at a barrier after some have left")
                waiting[:], barrier = False, -1
                continue
            first = int(counters[running].min())
            active = running & (counters == first)
            others = counters[running & ~active]
            meeting = int(others.min()) if others.size else -1
            at = self._run_together(first, active, meeting)
            counters[active] = at
            if at == meeting:
                continue
            instruction = self._program.instructions[at]
            if instruction.name == "bra":
                counters[active] = self._branch(instruction, at)[active]
                continue
            counters[active] += 1
            if instruction.name in _LEAVING:
                alive &= ~(active & self._guarded(instruction))
            else:
                if barrier not in (-1, at):
                    raise PtxError(f"threads wait at different barriers, one of them {instruction.text}")
                barrier = at
                waiting |= active

    def _run_together(self, at: int, active: Lanes, meeting: int) -> int:
        """Run threads until they branch, leave, wait for the block or meet others; give where they are then."""
        whole = None if active.all() else active
        while True:
            instruction = self._program.instructions[at]
            if instruction.name == "bra" or instruction.name in _LEAVING or _is_barrier(instruction):
                return at
            self._step(instruction, whole)
            at += 1
            if at == meeting:
                return at

    def _guarded(self, instruction: Instruction) -> Lanes:
        if instruction.guard is None:
            return np.ones(self._threads, bool)
        return self._registers.predicate(instruction.guard.register) ^ instruction.guard.negated

    def _branch(self, instruction: Instruction, at: int) -> Lanes:
        target = self._program.labels[instruction.operands[0]]
        return np.where(self._guarded(instruction), target, at + 1)

    def _step(self, instruction: Instruction, active: Lanes | None) -> None:
        """Run one instruction for the active threads, ``None`` for all of them."""
        if instruction.guard is not None:
            guarded = self._guarded(instruction)
            active = guarded if active is None else active & guarded
            if not active.any():
                return
        self.counts[instruction.name] += 1
        if computes(instruction) and not self._is_unpacking(instruction):
            self._registers.put(instruction.operands[0], compute(instruction, self._registers), active)
        else:
            self._act(instruction, active)

    @staticmethod
    def _is_unpacking(instruction: Instruction) -> bool:
        return instruction.name == "mov" and instruction.operands[0].startswith("{")

    def _act(self, instruction: Instruction, active: Lanes | None) -> None:
        match instruction.name:
            case "mov":
                self._unpack(instruction, active)
            case "ld" | "ldu":
                self._load(instruction, active)
            case "st":
                self._store(instruction, active)
            case "atom" | "red":
                self._update(instruction, active)
            case "cp":
                self._copy(instruction, active)
            case "bar":
                warp.check_whole(instruction, active)
            case "membar" | "fence" | "pragma":
                pass
            case "trap":
                raise PtxError("trap")
            case "ldmatrix":
                warp.check_whole(instruction, active)
                at = self._address(instruction.operands[1])
                warp.load_matrices(instruction, self._registers, self._memory, at, active)
            case name if name in warp.COLLECTIVES:
                warp.check_whole(instruction, active)
                warp.COLLECTIVES[name](instruction, self._registers, active)
            case _:
                raise PtxError(f"unknown instruction: {instruction.text}")

    def _unpack(self, instruction: Instruction, active: Lanes | None) -> None:
        names = vector(instruction.operands[0])
        value = bits_of(self._registers.get(instruction.operands[1], instruction.kind))
        parts = value.view(f"u{value.dtype.itemsize // len(names)}").reshape(self._threads, len(names))
        for number, name in enumerate(names):
            self._registers.put(name, parts[:, number].copy(), active)

    def _address(self, operand: str) -> Lanes:
        found = _ADDRESS.fullmatch(operand)
        if found is None:
            raise PtxError(f"no address: {operand}")
        base, offset = found.groups()
        start = np.full(self._threads, self._program.parameters.get(base, 0), np.int64)
        if base in self._registers:
            kind = "u64" if self._registers.is_wide(base) else "u32"
            start = self._registers.get(base, kind).astype(np.int64)
        return start + int(offset or "0", 0)

    def _load(self, instruction: Instruction, active: Lanes | None) -> None:
        names, lanes = vector(instruction.operands[0]), self._lanes(active)
        size = TYPES[instruction.kind].itemsize
        data = np.zeros((self._threads, size * len(names)), np.uint8)
        at = self._address(instruction.operands[1])[lanes]
        data[lanes] = self._memory.load(_space(instruction), at, size * len(names), instruction.text)
        parts = data.view(TYPES[instruction.kind])
        for number, name in enumerate(names):
            self._registers.put(name, widened(name, parts[:, number].copy()), active)

    def _store(self, instruction: Instruction, active: Lanes | None) -> None:
        lanes = self._lanes(active)
        values = [bits_of(self._registers.get(name, instruction.kind)) for name in vector(instruction.operands[1])]
        data = np.ascontiguousarray(np.stack(values, axis=1)).view(np.uint8)
        at = self._address(instruction.operands[0])[lanes]
        self._memory.store(_space(instruction), at, data[lanes], instruction.text)

    def _update(self, instruction: Instruction, active: Lanes | None) -> None:
        """Update memory one thread after the other; ``atom`` gives what was there before."""
        *target, address, value = instruction.operands
        operation = next(_UPDATES[name] for name in instruction.modifiers if name in _UPDATES)
        at, values = self._address(address), self._registers.get(value, instruction.kind)
        before = np.zeros_like(values)
        for lane in self._lanes(active):
            place = at[lane : lane + 1]
            old = self._memory.load(_space(instruction), place, values.dtype.itemsize, instruction.text)
            before[lane] = old.view(values.dtype)[0, 0]
            new = np.asarray(operation(before[lane], values[lane])).astype(values.dtype).reshape(1, 1)
            self._memory.store(_space(instruction), place, new.view(np.uint8), instruction.text)
        if target:
            self._registers.put(target[0], before, active)

    def _lanes(self, active: Lanes | None) -> Lanes:
        return np.arange(self._threads) if active is None else np.flatnonzero(active)

    def _copy(self, instruction: Instruction, active: Lanes | None) -> None:
        """Run ``cp.async``: a copy of 16 bytes, the end of a group of them, or waiting for groups."""
        if instruction.has("commit_group"):
            self._group += 1
        elif instruction.has("wait_group"):
            pending = int(instruction.operands[0])
            while self._copies and self._copies[0].group + pending < self._group:
                self._land(self._copies.pop(0))
        else:
            target, source, size, *read = instruction.operands
            copy = Copy(
                self._group,
                self._address(target),
                self._address(source),
                self._registers.get((read or [size])[0], "u32"),
                np.ones(self._threads, bool) if active is None else active,
                instruction.text,
            )
            if self._eager:
                self._land(copy)
            else:
                self._copies.append(copy)

    def _land(self, copy: Copy) -> None:
        data = np.zeros((self._threads, 16), np.uint8)
        reading = copy.active & (copy.read > 0)
        data[reading] = self._memory.load("global", copy.source[reading], 16, copy.text)
        self._memory.store("shared", copy.target[copy.active], data[copy.active], copy.text)


def _is_barrier(instruction: Instruction) -> bool:
    """Tell whether the block meets at an instruction; ``bar.warp.sync`` is of one warp."""
    return instruction.name in ("bar", "barrier") and not instruction.has("warp")


def _space(instruction: Instruction) -> str:
    return next((name for name in instruction.modifiers if name in ("global", "shared", "param")), "global")
