"""From the text of a PTX module to the instructions of one kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_STATEMENT = re.compile(r"(?:@(!?)(%?\w+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
_LABEL = re.compile(r"([$\w]+):\s*")
_PARAMETER = re.compile(
    r"\.param(?: \.align (\d+))? \.[usbf](\d+)(?: \.ptr)?(?: \.global)?(?: \.align \d+)? (\w+)(?:\[(\d+)\])?"
)
_DECLARATION = re.compile(r"(?<!\w)\.(reg|pragma|loc|local|shared|param|callprototype)\b[^;]*;")


class PtxError(RuntimeError):
    """PTX that does what no kernel may do, or that the interpreter does not know."""


class Guard(NamedTuple):
    """The predicate that an instruction runs under: where it is true, or where it is not."""

    register: str
    negated: bool


class Instruction(NamedTuple):
    """One instruction: ``mad.lo.s32`` is the name ``mad`` with the modifiers ``lo`` and ``s32``."""

    guard: Guard | None
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    text: str

    @property
    def kind(self) -> str:
        """The last modifier: the element type of most instructions."""
        return self.modifiers[-1] if self.modifiers else ""

    def has(self, modifier: str) -> bool:
        """Tell whether the instruction has a modifier."""
        return modifier in self.modifiers


class Program(NamedTuple):
    """The instructions of a kernel, where its labels stand, and where its parameters lie among all their bytes."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    parameters: dict[str, int]


def parse(ptx: str, entry: str) -> Program:
    """Give the program of a kernel by its lowered name."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in _statements(_body(ptx, entry)):
        while label := _LABEL.match(statement):
            labels[label[1]] = len(instructions)
            statement = statement[label.end() :]
        if statement:
            instructions.append(_instruction(statement))
    return Program(tuple(instructions), labels, _parameters(ptx, entry))


def _parameters(ptx: str, entry: str) -> dict[str, int]:
    """Give the place of each parameter."""
    start = ptx.index(f".entry {entry}(")
    found, end = {}, 0
    for match in _PARAMETER.finditer(ptx[start : ptx.index(")", start)]):
        align, bits, name, count = match.groups()
        size = int(bits) // 8
        end += -end % max(size, int(align or 0))
        found[name] = end
        end += size * int(count or 1)
    return found


def _body(ptx: str, entry: str) -> str:
    start = ptx.index("{", ptx.index(")", ptx.index(f".entry {entry}("))) + 1
    depth = 1
    for place in range(start, len(ptx)):
        depth += {"{": 1, "}": -1}.get(ptx[place], 0)
        if not depth:
            return ptx[start:place]
    raise PtxError(f"the body of {entry} has no end")


def _statements(body: str) -> Iterator[str]:
    """Give the statements of a body; the braces of blocks are left out, those of vectors stay."""
    body = re.sub(r"//[^\n]*", "", body)
    body = _DECLARATION.sub("", body)
    body = re.sub(r"\{(?=[^{}]*;)|(?<=;)\s*\}", "\n", body)
    for statement in re.split(r"[;\n]", body):
        statement = statement.strip(" \t\0")
        if statement.count("{") > statement.count("}"):
            statement = statement.removeprefix("{").lstrip()
        if statement and statement not in "{}":
            yield statement


def _instruction(statement: str) -> Instruction:
    found = _STATEMENT.match(statement)
    if not found:
        raise PtxError(f"no instruction: {statement}")
    negated, register, opcode, operands = found.groups()
    name, *modifiers = opcode.replace("::", "_").split(".")
    guard = Guard(register, negated == "!") if register else None
    return Instruction(guard, name, tuple(modifiers), tuple(_split(operands)), statement)


def _split(operands: str) -> Iterator[str]:
    """Cut a list of operands at the commas outside of vectors and addresses."""
    for operand in re.split(r",(?![^{\[]*[}\]])", operands):
        if operand.strip():
            yield operand.strip()
