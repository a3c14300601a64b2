"""Registers and operands: what instructions read and write, one lane for each thread of a block.

Axes: ``N`` threads of the block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit_cupy.ptx.program import PtxError

Lanes = np.ndarray[Any, Any]
"""One value for each thread, ``[N]``."""

TYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        **{f"u{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
        **{f"b{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
        **{f"s{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
        **{f"f{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
        "bf16": "u2",
        "f16x2": "u4",
        "bf16x2": "u4",
        "pred": "?",
    }.items()
}
"""NumPy's element type for PTX's; bfloat16 is held as its bits."""


_SIZES = (("%rd", 8), ("%rs", 2), ("%r", 4), ("%fd", 8), ("%f", 4))


def bits_of(lanes: Lanes) -> Lanes:
    """Give values as unsigned integers of their size; predicates stay."""
    if lanes.dtype == np.bool_:
        return lanes
    return np.ascontiguousarray(lanes).view(f"u{lanes.dtype.itemsize}")


def vector(operand: str) -> list[str]:
    """Give the registers of ``{a, b}``, or the one that there is."""
    return [name.strip() for name in operand.strip("{}").split(",")]


def widened(name: str, lanes: Lanes) -> Lanes:
    """Extend what was loaded to the register it goes to; NVRTC's names tell how wide that is."""
    size = next((size for prefix, size in _SIZES if name.startswith(prefix)), lanes.dtype.itemsize)
    return lanes.astype(f"{lanes.dtype.kind}{size}") if lanes.dtype.kind in "iu" else lanes


class Registers:
    """The registers of a block, by name; each holds bits, and an instruction says what they mean.

    Parameters
    ----------
    special
        The read-only registers, ``%tid.x`` and so on, ``[N]`` each.
    threads
        ``N``.
    """

    def __init__(self, special: Mapping[str, Lanes], threads: int) -> None:
        self._special = special
        self._held: dict[str, Lanes] = {}
        self.threads = threads

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def is_wide(self, name: str) -> bool:
        """Tell whether a register has 64 bits."""
        return bool(self._held[name].dtype.itemsize == 8)

    def predicate(self, name: str) -> Lanes:
        """Give a predicate register."""
        return self.get(name, "pred")

    def get(self, operand: str, kind: str) -> Lanes:
        """Give the value of an operand as a PTX type."""
        dtype = TYPES[kind]
        if operand.startswith("{"):
            names = vector(operand)
            part = f"b{8 * dtype.itemsize // len(names)}"
            parts = [self.get(name, part) for name in names]
            return np.ascontiguousarray(np.stack(parts, axis=1)).view(dtype)[:, 0]
        if operand in self._held or operand in self._special:
            bits = self._bits(operand)
            if bits.dtype.itemsize != dtype.itemsize:
                raise PtxError(f"{operand} of {8 * bits.dtype.itemsize} bits is read as {kind}")
            return bits if dtype == np.bool_ else bits.view(dtype)
        return np.full(self.threads, _constant(operand, dtype))

    def put(self, name: str, lanes: Lanes, active: Lanes | None) -> None:
        """Write a register in the active threads, ``None`` for all of them."""
        if name == "_":
            return
        bits = bits_of(lanes)
        if active is not None:
            old = self._held.get(name)
            old = np.zeros_like(bits) if old is None or old.dtype != bits.dtype else old
            bits = np.where(active, bits, old)
        self._held[name] = bits

    def _bits(self, name: str) -> Lanes:
        found = self._held.get(name)
        if found is None:
            found = self._special.get(name)
        if found is None:
            raise PtxError(f"{name} is read before it is written")
        return bits_of(found)


def _constant(operand: str, dtype: np.dtype[Any]) -> Any:
    """Give an immediate value; symbols stand for the beginning of the parameters, or of shared memory."""
    if found := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", operand):
        single, double = found.groups()
        value = np.array(int(single, 16), "u4").view("f4") if single else np.array(int(double, 16), "u8").view("f8")
        return value.astype(dtype) if dtype.kind == "f" else value.view(dtype)
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
        number = int(operand.rstrip("U"), 0)
        if dtype == np.bool_:
            return bool(number)
        unsigned = np.array(number & (1 << 8 * dtype.itemsize) - 1, f"u{dtype.itemsize}")
        return unsigned.view(dtype) if dtype.kind != "f" else dtype.type(number)
    if re.fullmatch(r"[_$A-Za-z][\w$]*", operand):
        return dtype.type(0)
    raise PtxError(f"{operand} is no operand that is known here")
