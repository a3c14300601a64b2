"""Folder: what a reproducer leaves behind: the case, the arrays, the program, and a few words."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.items import Item
from attnkit_conformance.repro.casefile import CaseFile, case_file
from attnkit_conformance.repro.claims import Claim, Held, Right, Same
from attnkit_conformance.repro.program import Target, program
from attnkit_conformance.repro.referee import Expectations
from attnkit_conformance.repro.searching import Found
from attnkit_conformance.repro.tape import Run
from attnkit_conformance.subject import Subject

Array = np.ndarray[Any, Any]


def write(
    folder: Path, item: Item, subject: Subject, found: Found, share: float, run: Run, expectations: Expectations
) -> Path:
    """Write ``case.json``, ``arrays.npz``, ``repro.py`` and ``README.md`` into a folder named after the item."""
    target, place = _target(subject), folder / item.fingerprint
    text, arrays = program(_title(item, found), target, found.calls, found.claim, run, expectations)
    arrays = {**arrays, **_outcome(found.claim, run, expectations)}
    case = case_file(item, target.name, found, share, arrays)
    place.mkdir(parents=True, exist_ok=True)
    (place / "case.json").write_text(case.model_dump_json(indent=2) + "\n", "utf-8")
    (place / "repro.py").write_text(text, "utf-8")
    (place / "README.md").write_text(_readme(case), "utf-8")
    stored: dict[str, Any] = {name: _stored(array) for name, array in arrays.items()}
    np.savez(place / "arrays.npz", **stored)
    return place


def _target(subject: Subject) -> Target:
    """Give how a program gets at the backend: by its name, or by what makes it."""
    name, device = subject.name, getattr(subject.harness, "device", "")
    if name.partition(":")[0] in {info.name for info in ak.backends()}:
        return Target(name, registered=True, device=device)
    if ":" not in name:
        kind = type(getattr(subject.harness, "backend", None))
        name = f"{kind.__module__}:{kind.__qualname__}"
    return Target(name, registered=False, device=device)


def _title(item: Item, found: Found) -> str:
    alone = "The check makes several calls; this one is wrong by itself.\n" if found.alone else ""
    statement = textwrap.fill(f"{item.requirement.id}: {item.requirement.statement}", 110)
    return f"""{statement}

{item.test}[{item.case}]
{alone}Exits with 1 while the fault is there, with 0 when it is gone.
"""


def _outcome(claim: Claim, run: Run, expectations: Expectations) -> dict[str, Array]:
    """Give what came out, what must come out, and how far that may be apart."""
    match claim:
        case Right(observed):
            expected = expectations[observed.call]
            found = {"actual": observed.of(run), "expected": expected.values, "tau": expected.tau}
        case Held(observed, expected):
            found = {"actual": observed.of(run), "expected": expected.values, "tau": expected.tau}
        case Same(observed, other, tau):
            found = {"actual": observed.of(run), "expected": other.of(run), "tau": tau}
        case _:
            found = {}
    return {name: np.asarray(array) for name, array in found.items() if array is not None}


def _stored(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _readme(case: CaseFile) -> str:
    shrunk = "; ".join(f"{name} from {old} to {new}" for name, (old, new) in case.shrunk.items()) or "nothing"
    alone = "The check makes several calls; the program makes one of them, which is wrong by itself.\n\n"
    rarely = f"It did so in {case.share:.0%} of a few tries: the fault does not show every time.\n\n"
    return f"""# {case.requirement} on {case.backend}

{case.statement}

    {case.item}

{textwrap.indent(case.found.splitlines()[0], "> ")}

{alone if case.alone else ""}`python repro.py` needs NumPy, attnkit and the backend alone. It exits with 1 while the
fault is there and with 0 when it is gone. Arrays are in `arrays.npz`, the case is in `case.json`.

{rarely if case.share < 1 else ""}Shrunk: {shrunk}; {case.calls[0]} calls to {case.calls[1]}.
"""
