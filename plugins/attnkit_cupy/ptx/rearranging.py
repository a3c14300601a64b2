"""Instructions that compare, choose, convert and move bits: each thread by itself, from registers to registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnkit_cupy.ptx.program import Instruction
from attnkit_cupy.ptx.values import TYPES, Lanes, Registers, bits_of

_BF16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

_COMPARISONS: Mapping[str, Callable[[Lanes, Lanes], Lanes]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "lo": np.less,
    "le": np.less_equal,
    "ls": np.less_equal,
    "gt": np.greater,
    "hi": np.greater,
    "ge": np.greater_equal,
    "hs": np.greater_equal,
}


def _compare(instruction: Instruction, registers: Registers) -> Lanes:
    comparison = next(name for name in instruction.modifiers if name.removesuffix("u") in (*_COMPARISONS, "num", "nan"))
    a, b = (registers.get(operand, instruction.kind) for operand in instruction.operands[1:3])
    unordered = np.isnan(a) | np.isnan(b) if a.dtype.kind == "f" else np.zeros(len(a), bool)
    if comparison in ("num", "nan"):
        found = unordered if comparison == "nan" else ~unordered
    elif comparison in _COMPARISONS:
        found = _COMPARISONS[comparison](a, b) & ~unordered
    else:
        found = _COMPARISONS[comparison[:-1]](a, b) | unordered
    if len(instruction.operands) > 3:
        other = instruction.operands[3]
        joined = registers.predicate(other.lstrip("!"))
        joined = ~joined if other.startswith("!") else joined
        join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
        found = join[next(name for name in instruction.modifiers if name in join)](found, joined)
    return np.asarray(found)


def _convert(instruction: Instruction, registers: Registers) -> Lanes:
    types = [name for name in instruction.modifiers if name in TYPES or name == "bf16"]
    target, source = types[0], types[1]
    if target.endswith("x2"):
        high, low = (_narrow(registers.get(operand, "f32"), target[:-2]) for operand in instruction.operands[1:3])
        return high.astype(np.uint32) << np.uint32(16) | low
    value = registers.get(instruction.operands[1], source)
    if source == "bf16":
        value = value.view(_BF16).astype(np.float32)
    if target in ("bf16", "f16"):
        return _narrow(value, target)
    return _converted(instruction, value, TYPES[target])


def _narrow(value: Lanes, target: str) -> Lanes:
    return bits_of(value.astype(_BF16 if target == "bf16" else np.float16))


def _converted(instruction: Instruction, value: Lanes, dtype: np.dtype[Any]) -> Lanes:
    if value.dtype.kind == "f":
        rounding = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}
        for name, function in rounding.items():
            value = function(value) if instruction.has(name) else value
        if dtype.kind in "iu":  # PTX saturates, and makes 0 of NaN
            limits = np.iinfo(dtype)
            highest = np.nextafter(float(limits.max), 0) if dtype.itemsize > 4 else limits.max
            value = np.clip(np.nan_to_num(value, nan=0.0), limits.min, highest)
    return value.astype(dtype)


def _select(instruction: Instruction, registers: Registers) -> Lanes:
    yes, no, predicate = instruction.operands[1:]
    kind = instruction.kind
    return np.where(registers.predicate(predicate), registers.get(yes, kind), registers.get(no, kind))


def _extract(instruction: Instruction, registers: Registers) -> Lanes:
    kind = instruction.kind
    value = registers.get(instruction.operands[1], kind)
    place, count = (registers.get(operand, "u32").astype(np.int64) & 255 for operand in instruction.operands[2:4])
    bits = 8 * value.dtype.itemsize
    field = value.astype(object) >> place
    mask = (1 << count.astype(object)) - 1
    field = np.array([int(x) & int(m) for x, m in zip(field, mask, strict=True)], object)
    if kind.startswith("s"):
        sign = np.array([(1 << int(n)) >> 1 for n in count], object)
        field = (field ^ sign) - sign
    return np.array([int(x) & (1 << bits) - 1 for x in field], f"u{value.dtype.itemsize}").view(value.dtype)


def _insert(instruction: Instruction, registers: Registers) -> Lanes:
    field, base = (registers.get(operand, instruction.kind) for operand in instruction.operands[1:3])
    place, count = (registers.get(operand, "u32").astype(field.dtype) for operand in instruction.operands[3:5])
    one = field.dtype.type(1)
    mask = ((one << count) - one) << place
    return np.asarray(base & ~mask | field << place & mask)


def _permute(instruction: Instruction, registers: Registers) -> Lanes:
    """Pick four of eight bytes."""
    a, b, picks = (registers.get(operand, "b32") for operand in instruction.operands[1:4])
    source = np.ascontiguousarray(np.stack([a, b], axis=1)).view(np.uint8)
    found = np.empty((len(a), 4), np.uint8)
    for byte in range(4):
        pick = (picks >> np.uint32(4 * byte) & np.uint32(15)).astype(np.int64)
        chosen = source[np.arange(len(a)), pick & 7]
        found[:, byte] = np.where(pick & 8, np.where(chosen & 128, 255, 0), chosen)
    return found.view(np.uint32)[:, 0]


def _logic3(instruction: Instruction, registers: Registers) -> Lanes:
    """Any function of three bits, ``lop3``, by its table of eight."""
    a, b, c = (registers.get(operand, "b32") for operand in instruction.operands[1:4])
    table = int(instruction.operands[4], 0)
    found = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


def _test(instruction: Instruction, registers: Registers) -> Lanes:
    value = registers.get(instruction.operands[1], instruction.kind)
    tests: Mapping[str, Callable[[Lanes], Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "notanumber": np.isnan,
        "number": lambda x: ~np.isnan(x),
    }
    return np.asarray(next(tests[name] for name in instruction.modifiers if name in tests)(value))


REARRANGING: Mapping[str, Callable[[Instruction, Registers], Lanes]] = {
    "bfe": _extract,
    "bfi": _insert,
    "cvt": _convert,
    "cvta": lambda instruction, registers: registers.get(instruction.operands[1], instruction.kind),
    "lop3": _logic3,
    "prmt": _permute,
    "selp": _select,
    "setp": _compare,
    "testp": _test,
}
