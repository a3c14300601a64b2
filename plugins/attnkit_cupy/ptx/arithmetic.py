"""Instructions that compute: each thread by itself, from registers to registers.

What PTX approximates (``ex2.approx``, ``rcp.approx``) is computed as NumPy does; it says nothing about the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnkit_cupy.ptx.program import Instruction, PtxError
from attnkit_cupy.ptx.rearranging import REARRANGING
from attnkit_cupy.ptx.values import Lanes, Registers


def _wide(lanes: Lanes) -> Lanes:
    return lanes.astype(f"{lanes.dtype.kind}{2 * lanes.dtype.itemsize}")


def _high(a: Lanes, b: Lanes) -> Lanes:
    """Give the upper half of products."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        return np.asarray((_wide(a) * _wide(b) >> bits).astype(a.dtype))
    products = [int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)]
    return np.array([product & (1 << bits) - 1 for product in products], np.uint64).view(a.dtype)


def _multiply(instruction: Instruction, a: Lanes, b: Lanes) -> Lanes:
    if instruction.has("wide"):
        return np.asarray(_wide(a) * _wide(b))
    return _high(a, b) if instruction.has("hi") else a * b


def _multiply_add(instruction: Instruction, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    if a.dtype.kind != "f":
        return _multiply(instruction, a, b) + c
    if a.dtype == np.float64:  # rounded twice, where the machine rounds once
        return a * b + c
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def _divide(instruction: Instruction, a: Lanes, b: Lanes) -> Lanes:
    del instruction
    if a.dtype.kind == "f":
        return a / b
    divisor = np.where(b == 0, a.dtype.type(1), b)
    quotient = a // divisor
    below = (a % divisor != 0) & ((a < 0) != (divisor < 0))  # PTX cuts towards zero
    return np.asarray(quotient + below.astype(a.dtype))


def _remainder(_: Instruction, a: Lanes, b: Lanes) -> Lanes:
    return np.asarray(np.fmod(a, np.where(b == 0, a.dtype.type(1), b)))


def _shift_left(_: Instruction, a: Lanes, count: Lanes) -> Lanes:
    bits = 8 * a.dtype.itemsize
    return np.asarray(np.where(count >= bits, a.dtype.type(0), a << np.minimum(count, bits - 1).astype(a.dtype)))


def _shift_right(_: Instruction, a: Lanes, count: Lanes) -> Lanes:
    bits = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(count, bits - 1).astype(a.dtype)
    return np.asarray(shifted if a.dtype.kind == "i" else np.where(count >= bits, a.dtype.type(0), shifted))


def _funnel(instruction: Instruction, low: Lanes, high: Lanes, count: Lanes) -> Lanes:
    """Shift 64 bits and give one half of them."""
    count = (count & 31 if instruction.has("wrap") else np.minimum(count, 32)).astype(np.uint64)
    both = high.astype(np.uint64) << np.uint64(32) | low
    half = both << count >> np.uint64(32) if instruction.has("l") else both >> count
    return np.asarray(half.astype(np.uint32))


def _largest(instruction: Instruction, *values: Lanes) -> Lanes:
    floats = values[0].dtype.kind == "f"
    if instruction.name == "max":
        return np.asarray((np.fmax if floats else np.maximum)(*values))
    return np.asarray((np.fmin if floats else np.minimum)(*values))


def _plain(function: Callable[..., Any]) -> Callable[..., Lanes]:
    return lambda _instruction, *values: np.asarray(function(*values))


_OPERATIONS: Mapping[str, Callable[..., Lanes]] = {
    "abs": _plain(np.abs),
    "add": _plain(np.add),
    "and": _plain(np.bitwise_and),
    "copysign": _plain(lambda sign, size: np.copysign(size, sign)),
    "div": _divide,
    "ex2": _plain(np.exp2),
    "fma": _multiply_add,
    "lg2": _plain(np.log2),
    "mad": _multiply_add,
    "max": _largest,
    "min": _largest,
    "mov": _plain(lambda value: value),
    "mul": _multiply,
    "neg": _plain(np.negative),
    "not": _plain(np.invert),
    "or": _plain(np.bitwise_or),
    "rcp": _plain(lambda value: value.dtype.type(1) / value),
    "rem": _remainder,
    "rsqrt": _plain(lambda value: value.dtype.type(1) / np.sqrt(value)),
    "shf": _funnel,
    "shl": _shift_left,
    "shr": _shift_right,
    "sqrt": _plain(np.sqrt),
    "sub": _plain(np.subtract),
    "tanh": _plain(np.tanh),
    "xor": _plain(np.bitwise_xor),
    "clz": _plain(lambda value: np.array([8 * value.dtype.itemsize - int(x).bit_length() for x in value], "u4")),
    "popc": _plain(lambda value: np.bitwise_count(value).astype(np.uint32)),
}


def _operand_kinds(instruction: Instruction) -> tuple[str, ...]:
    """Give the types of the sources, which for most are all the instruction's."""
    kind, count = instruction.kind, len(instruction.operands) - 1
    if instruction.name in ("shl", "shr"):
        return kind, "u32"
    if instruction.name == "mad" and instruction.has("wide"):
        return kind, kind, f"{kind[0]}{2 * int(kind[1:])}"
    return (kind,) * count


def _compute(instruction: Instruction, registers: Registers) -> Lanes:
    sources = zip(instruction.operands[1:], _operand_kinds(instruction), strict=True)
    values = [registers.get(operand, kind) for operand, kind in sources]
    found = _OPERATIONS[instruction.name](instruction, *values)
    if instruction.has("sat"):
        found = np.clip(found, 0, 1).astype(found.dtype)
    return found


def computes(instruction: Instruction) -> bool:
    """Tell whether an instruction is one of these."""
    return instruction.name in _OPERATIONS or instruction.name in REARRANGING


def compute(instruction: Instruction, registers: Registers) -> Lanes:
    """Give the result of an instruction in every thread."""
    with np.errstate(all="ignore"):
        if instruction.name in REARRANGING:
            return REARRANGING[instruction.name](instruction, registers)
        if instruction.name in _OPERATIONS:
            return _compute(instruction, registers)
    raise PtxError(f"unknown instruction: {instruction.text}")
