"""Reproducing: a folder with a program that puts one request to a side, and exits with 1 while it is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.crosscheck.judging import Judgement, Name
from attnkit_conformance.crosscheck.sides import Side
from attnkit_conformance.repro.literals import Data, literal

_PROGRAM = '''"""{title}

Exits with 1 while the fault is there, with 0 when it is gone. Needs NumPy, attnkit{needs} and the side itself.
"""

import sys
from pathlib import Path

import ml_dtypes  # makes numpy.dtype("bfloat16") known
import numpy as np

import attnkit as ak
{imports}
data = np.load(Path(__file__).with_name("arrays.npz"))
query, key, value = {arrays}
options = {options}
backend = ak.get_backend("{plain}") if "{plain}" else {made}
given = [backend.from_numpy(array) for array in (query, key, value)]
for name in ("bias", "alibi", "sinks"):
    if name in options:
        options[name] = backend.from_numpy(options[name])
output = backend.to_numpy(ak.attention(*given, **options, backend={choice})).astype(np.float64)

expected, tau = data["expected"], data["tau"]
wrong = ~((np.abs(output - expected) <= tau) | (np.isnan(output) & np.isnan(expected)) | (output == expected))
print(f"{{int(wrong.sum())}} of {{wrong.size}} elements beyond tau")
for place in np.argwhere(wrong)[:8]:
    at = tuple(place)
    print(f"  {{list(map(int, at))}}: {{output[at]!r}} where {{expected[at]!r}} is right, tau {{tau[at]:.3g}}")
sys.exit(bool(wrong.any()))
'''


def write_program(folder: Path, judgement: Judgement, sides: dict[Name, Side], blamed: Name) -> Path:
    """Write ``repro.py``, ``arrays.npz`` and ``finding.json`` into a folder of their own; gives it."""
    case, side = judgement.case, sides[blamed]
    digest = hashlib.sha256(f"{side.name} {case} {judgement.complaints}".encode()).hexdigest()[:12]
    place = folder / digest
    place.mkdir(parents=True, exist_ok=True)
    data = Data()
    arrays = [
        _expression(data, name, array) for name, array in zip(("query", "key", "value"), case.arrays, strict=True)
    ]
    options = ", ".join(f'"{name}": {_option(data, name, value)}' for name, value in case.options.items())
    bound = case.tolerance(side.numerics(case.dtype))
    stored = {**data.arrays, "expected": case.truth.output, "tau": bound.output}
    np.savez(place / "arrays.npz", **{name: _plain(array) for name, array in stored.items()})
    (place / "repro.py").write_text(_text(judgement, side.name, arrays, options), "utf-8")
    told = {"case": str(case), "blamed": judgement.blamed, "complaints": judgement.complaints}
    (place / "finding.json").write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    return place


def _text(judgement: Judgement, name: str, arrays: list[str], options: str) -> str:
    module = name.partition(":")[0]
    registered = module in _registered()
    imports = "" if registered else "from attnkit_conformance.harness.targets import open_target\n"
    made = "None" if registered else f"open_target({name!r}).backend"
    return _PROGRAM.format(
        title=f"{name}: {judgement.case}".replace("\\", "/"),
        needs="" if registered else ", attnkit_conformance",
        imports=imports,
        arrays=", ".join(arrays),
        options=f"{{{options}}}",
        plain=module if registered else "",
        made=made,
        choice=literal(name) if registered else "backend",
    )


def _registered() -> set[str]:
    return {info.name for info in ak.backends()}


def _expression(data: Data, name: str, array: Any) -> str:
    return data.expression(name, np.asarray(array))


def _option(data: Data, name: str, value: Any) -> str:
    terms = getattr(value, "terms", None)
    if terms is not None:
        parts = []
        for kind, *arguments in terms:
            given = [
                _expression(data, f"{kind}", argument) if isinstance(argument, np.ndarray) else literal(argument)
                for argument in arguments
            ]
            parts.append(f"ak.Mask.{kind}({', '.join(given)})")
        return " & ".join(parts)
    return _expression(data, name, value) if isinstance(value, np.ndarray) else literal(value)


def _plain(array: Any) -> Any:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
