"""Reproducing: a folder with a program that puts one request to a side, and exits with 1 while it is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.calls import RepeatedHead
from attnkit_conformance.crosscheck.judging import Judgement, Name
from attnkit_conformance.crosscheck.sides import Side
from attnkit_conformance.repro.literals import Data, literal
from attnkit_conformance.subject import lse_dtype

_PROGRAM = '''"""{title}

Exits with 1 while the fault is there, with 0 when it is gone. Needs NumPy, attnkit{needs} and the side itself.
"""

import sys
from pathlib import Path

import ml_dtypes  # makes numpy.dtype("bfloat16") known
import numpy as np
{library}
import attnkit as ak
{imports}
data = np.load(Path(__file__).with_name("arrays.npz"))
query, key, value = {arrays}
options = {options}
backend = ak.get_backend("{plain}") if "{plain}" else {made}
given = [backend.from_numpy(array) for array in (query, key, value)]
{laid}for name in ("bias", "alibi", "sinks"):
    if name in options:
        options[name] = backend.from_numpy(options[name])
answer = backend.to_numpy({asked})

expected, tau = data["expected"], data["tau"]
if (answer.dtype.name, answer.shape) != ("{dtype}", expected.shape):
    print(f"{what} must be {dtype} {{expected.shape}}, got {{answer.dtype.name}} {{answer.shape}}")
    sys.exit(1)
answer = answer.astype(np.float64)
wrong = ~((np.abs(answer - expected) <= tau) | (np.isnan(answer) & np.isnan(expected)) | (answer == expected))
print(f"{what}: {{int(wrong.sum())}} of {{wrong.size}} elements beyond tau")
for place in np.argwhere(wrong)[:8]:
    at = tuple(place)
    print(f"  {{list(map(int, at))}}: {{answer[at]!r}} where {{expected[at]!r}} is right, tau {{tau[at]:.3g}}")
sys.exit(bool(wrong.any()))
'''
_REPEATED = """for place, array in enumerate((key, value), 1):
    one = backend.from_numpy(array[:, :1].copy())
    given[place] = array_namespace(one).broadcast_to(one, array.shape)  # without a copy
"""


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
    what = next((part.what for part in judgement.parts if part.worst(blamed) > 1), "output")
    bound = case.tolerance(side.numerics(case.dtype))
    stored = {**data.arrays, "expected": getattr(case.truth, what), "tau": getattr(bound, what)}
    np.savez(place / "arrays.npz", **{name: _plain(array) for name, array in stored.items()})
    (place / "repro.py").write_text(_text(case, side.name, what, arrays, options), "utf-8")
    told = {"case": str(case), "blamed": judgement.blamed, "complaints": judgement.complaints}
    (place / "finding.json").write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    return place


def _text(case: Case, name: str, what: str, arrays: list[str], options: str) -> str:
    module = name.partition(":")[0]
    registered, repeated = module in _registered(), isinstance(case, RepeatedHead)
    imports = "" if registered else "from attnkit_conformance.harness.targets import open_target\n"
    made = "None" if registered else f"open_target({name!r}).backend"
    call = f"(*given, **options, backend={literal(name) if registered else 'backend'})"
    return _PROGRAM.format(
        title=f"{name}: {case}".replace("\\", "/"),
        needs="" if registered else ", attnkit_conformance",
        library="from array_api_compat import array_namespace\n" if repeated else "",
        imports=imports,
        arrays=", ".join(arrays),
        options=f"{{{options}}}",
        plain=module if registered else "",
        made=made,
        laid=_REPEATED if repeated else "",
        asked=f"ak.attention{call}" if what == "output" else f"ak.attention_with_lse{call}[1]",
        what=what,
        dtype=case.dtype if what == "output" else lse_dtype(case.dtype),
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
