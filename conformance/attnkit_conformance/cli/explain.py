"""``attnkit conform explain``: what a requirement, an item, a capability or a rule of the contract comes down to."""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Annotated, Any

import numpy as np
import typer

import attnkit as ak
from attnkit.cli.output import print_json, print_line
from attnkit_conformance import suite
from attnkit_conformance.cases import Case
from attnkit_conformance.cli.options import JsonOption, wrong_use
from attnkit_conformance.items import Item, items
from attnkit_conformance.requirements import LEVELS, Requirement, requirements

_CAPABILITIES = tuple(field.name for field in fields(ak.Capabilities))
_PINNED = {"dtypes": "dtype", "head_dims": "head_dim"}
Facts = dict[str, Any]


def explain(
    name: Annotated[str, typer.Argument(metavar="ID", help="A requirement, an item, a capability, or a rule.")],
    json: JsonOption = False,
) -> None:
    """Explain a requirement (ATTN-MASK-001), an item of a report, a capability (sinks), or a rule (A7)."""
    facts = _facts(name.strip())
    if facts is None:
        wrong_use(f"there is nothing of the name {name!r}{_closest(name)}; 'attnkit conform list' has all of them")
    print_json(facts) if json else _print(facts)


def _facts(name: str) -> Facts | None:
    for requirement in requirements():
        if requirement.id == name.upper():
            return _of_requirement(requirement)
    for item in items():
        if name in (item.id, item.id.partition("/")[2]):
            return _of_item(item)
    if name.lower() in _CAPABILITIES:
        return _of_capability(name.lower())
    return _of_rule(name.upper())


def _of_requirement(requirement: Requirement) -> Facts:
    found = [item for item in items() if item.requirement is requirement]
    return {
        "id": requirement.id,
        "title": requirement.title,
        "statement": requirement.statement,
        "rules": list(requirement.rules),
        "since": requirement.since,
        "level": f"{requirement.level} {LEVELS[requirement.level]}",
        "when": requirement.when or "always",
        "undeclared": _undeclared(requirement.needs),
        "tests": dict(Counter(item.test for item in found)),
        "items": [item.id.partition("/")[2] for item in found],
        "faults": list(requirement.mutants),
        "no fault": requirement.no_mutant,
    }


def _of_item(item: Item) -> Facts:
    asked = tuple(dict.fromkeys(item.case.features()))
    return {
        "id": item.id,
        "requirement": f"{item.requirement.id}: {item.requirement.title}",
        "statement": item.requirement.statement,
        "test": _doc(item.test),
        "level": f"{item.requirement.level} {LEVELS[item.requirement.level]}",
        "needs": list(asked),
        "undeclared": _undeclared(asked),
        "case": dict(_case(item.case)),
        "run": f"attnkit conform run BACKEND --only '{item.id}'",
    }


def _of_capability(name: str) -> Facts:
    """Say what is asked of a backend that declares a capability, and of one that does not."""
    asking = [item for item in items() if _asks_for(item.case, name)]
    about = [item for item in requirements() if name in item.capabilities]
    return {
        "capability": name,
        "meaning": _meaning(name),
        "requirements": [f"{item.id}: {item.title}" for item in about],
        "undeclared": _undeclared([name] if asking else []),
        "items": dict(Counter(item.requirement.id for item in asking)),
    }


def _of_rule(rule: str) -> Facts | None:
    found = [item for item in requirements() if rule in item.rules]
    return {"rule": rule, "requirements": [f"{item.id}: {item.statement}" for item in found]} if found else None


def _asks_for(case: Case, capability: str) -> bool:
    return capability in case.features() or _PINNED.get(capability) in case.pinned


def _undeclared(capabilities: Iterable[str]) -> str:
    codes = ", ".join(capabilities)
    return f"the call must raise UnsupportedError with the code of each that is not declared: {codes}" if codes else ""


def _doc(test: str) -> str:
    kind, _, method = test.partition("::")
    return inspect.cleandoc(getattr(getattr(suite, kind), method).__doc__ or test)


def _meaning(name: str) -> str:
    """Give the sentence of a capability in the docstring of ``Capabilities``."""
    lines = inspect.cleandoc(ak.Capabilities.__doc__ or "").splitlines()
    start = next(i for i, line in enumerate(lines) if not line.startswith(" ") and name in line.split(", "))
    rest = lines[start + 1 :]
    end = next((i for i, line in enumerate(rest) if not line.startswith(" ")), len(rest))
    return " ".join(line.strip() for line in rest[:end])


def _case(case: Case) -> Iterator[tuple[str, Any]]:
    """Give what makes a case, without what it leaves as it is by default."""
    yield (
        "sizes",
        " ".join(
            f"{axis}={size}"
            for axis, size in zip(
                "BHKTSDE",
                (case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.head_dim, case.width),
                strict=True,
            )
        ),
    )
    told = {"batch", "heads", "kv_heads", "queries", "keys", "head_dim", "value_dim", "label", "seed", "pinned"}
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name == "options":
            yield from ((name, _short(option)) for name, option in value.items())
        elif field.name not in told and (value != field.default or field.name in ("dtype", "draw")):
            yield field.name, _short(value)
    yield "as given", "element type and head size move to the nearest declared ones, unless the case is about them"


def _short(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= 8 else f"{value.dtype}{list(value.shape)}"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _closest(name: str) -> str:
    known = [*(item.id for item in requirements()), *_CAPABILITIES, *(item.id for item in items())]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"; close: {', '.join(close)}" if close else ""


def _print(facts: Facts) -> None:
    """Print facts, one a line; a list of many is cut short, as ``--json`` has it whole."""
    for name, value in facts.items():
        if value in ("", [], {}):
            continue
        if isinstance(value, list | dict):
            print_line(f"{name}:")
            lines = [f"{key}: {what}" for key, what in value.items()] if isinstance(value, dict) else value
            for line in [*lines[:20], *([f"... and {len(lines) - 20} more, see --json"] if len(lines) > 20 else [])]:
                print_line(f"    {line}")
        else:
            print_line(f"{name}: {value}")
