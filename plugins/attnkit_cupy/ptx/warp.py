"""Instructions of a whole warp: shuffles, votes, ldmatrix and mma, by the fragment layouts of the PTX manual.

Axes: ``N`` threads of the block, ``W`` warps of 32 lanes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnkit_cupy.ptx.memory import Memory
from attnkit_cupy.ptx.program import Instruction, PtxError
from attnkit_cupy.ptx.values import Lanes, Registers, vector

_LANE = np.arange(32)
_GROUP = _LANE >> 2
"""The row of an 8x8 matrix that a lane holds two neighbours of."""
_PAIR = (_LANE & 3) * 2
"""The column of the first of them."""


def shuffle(instruction: Instruction, registers: Registers, active: Lanes | None) -> None:
    """Give each lane the value of another one of its warp."""
    target, _, valid = instruction.operands[0].partition("|")
    value = registers.get(instruction.operands[1], "b32")
    by, bounds = (registers.get(operand, "u32").astype(np.int64) for operand in instruction.operands[2:4])
    lane = np.arange(registers.threads) % 32
    segment, limit = bounds >> 8 & 31, bounds & 31
    first, last = lane & segment, lane & segment | limit & ~segment
    mode = next(name for name in instruction.modifiers if name in ("bfly", "idx", "down", "up"))
    source = {"bfly": lane ^ by, "idx": first | by & ~segment & 31, "down": lane + by, "up": lane - by}[mode]
    inside = source >= first if mode == "up" else source <= last
    source = np.where(inside, source, lane)
    registers.put(target, value[np.arange(registers.threads) - lane + source], active)
    if valid:
        registers.put(valid, inside, active)


def vote(instruction: Instruction, registers: Registers, active: Lanes | None) -> None:
    """Join a predicate of all lanes of a warp."""
    operand = instruction.operands[1]
    asked = registers.predicate(operand.lstrip("!"))
    asked = (~asked if operand.startswith("!") else asked).reshape(-1, 32)
    if instruction.has("ballot"):
        found = (asked.astype(np.uint64) << _LANE.astype(np.uint64)).sum(axis=1).astype(np.uint32)
    else:
        found = asked.any(axis=1) if instruction.has("any") else asked.all(axis=1)
    registers.put(instruction.operands[0], np.repeat(found, 32), active)


def load_matrices(
    instruction: Instruction, registers: Registers, memory: Memory, at: Lanes, active: Lanes | None
) -> None:
    """Load 8x8 matrices of 16-bit numbers: lane ``l`` gives the address of row ``l % 8`` of matrix ``l // 8``."""
    count = int(next(name for name in instruction.modifiers if re.fullmatch(r"x\d", name))[1:])
    asked = np.tile(8 * count > _LANE, registers.threads // 32)
    if active is not None:
        asked &= active
    rows = np.zeros((registers.threads, 16), np.uint8)
    rows[asked] = memory.load("shared", at[asked], 16, instruction.text)
    matrices = rows.view(np.uint16).reshape(-1, 32, 8)
    for number, name in enumerate(vector(instruction.operands[0])):
        matrix = matrices[:, 8 * number : 8 * number + 8]
        if instruction.has("trans"):
            matrix = matrix.swapaxes(1, 2)
        low, high = matrix[:, _GROUP, _PAIR], matrix[:, _GROUP, _PAIR + 1]
        registers.put(name, (low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)).ravel(), active)


def multiply_matrices(instruction: Instruction, registers: Registers, active: Lanes | None) -> None:
    """Multiply 16-bit matrices, ``[16, k] @ [k, 8] + [16, 8]`` in float32."""
    shape = next(found for name in instruction.modifiers if (found := re.fullmatch(r"m16n8k(\d+)", name)))
    inner, warps = int(shape[1]), registers.threads // 32
    dtype = np.dtype(ml_dtypes.bfloat16 if instruction.has("bf16") else np.float16)
    names = [vector(operand) for operand in instruction.operands]

    a, b = np.zeros((warps, 16, inner), np.float32), np.zeros((warps, inner, 8), np.float32)
    for number, name in enumerate(names[1]):
        low, high = _pairs(registers, name, dtype)
        row, column = _GROUP + 8 * (number & 1), _PAIR + 8 * (number >> 1)
        a[:, row, column], a[:, row, column + 1] = low, high
    for number, name in enumerate(names[2]):
        low, high = _pairs(registers, name, dtype)
        b[:, _PAIR + 8 * number, _GROUP], b[:, _PAIR + 8 * number + 1, _GROUP] = low, high

    total = np.zeros((warps, 16, 8), np.float32)
    for number, name in enumerate(names[3]):
        total[:, _GROUP + 8 * (number >> 1), _PAIR + (number & 1)] = registers.get(name, "f32").reshape(warps, 32)
    with np.errstate(all="ignore"):
        total += a @ b
    for number, name in enumerate(names[0]):
        registers.put(name, total[:, _GROUP + 8 * (number >> 1), _PAIR + (number & 1)].ravel(), active)


def _pairs(registers: Registers, name: str, dtype: np.dtype[Any]) -> tuple[Lanes, Lanes]:
    """Give the lower and the upper number of registers that hold two, ``[W, 32]`` each."""
    halves = np.ascontiguousarray(registers.get(name, "b32")).view(dtype).astype(np.float32).reshape(-1, 32, 2)
    return halves[..., 0], halves[..., 1]


COLLECTIVES: Mapping[str, Callable[[Instruction, Registers, Lanes | None], None]] = {
    "shfl": shuffle,
    "vote": vote,
    "mma": multiply_matrices,
}


def check_whole(instruction: Instruction, active: Lanes | None) -> None:
    """Raise an error if only a part of a warp has come to an instruction of the whole."""
    if active is not None:
        warps = active.reshape(-1, 32)
        if (warps.any(axis=1) & ~warps.all(axis=1)).any():
            raise PtxError(f"a part of a warp is at {instruction.text}")
