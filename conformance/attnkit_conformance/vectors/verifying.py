"""Verify: answers held to golden vectors; what is wrong is said, down to the first step, key or byte order.

Nothing that was given is believed: a package that is not as it was written is not used, and files of another size are
not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from attnkit_conformance.compare import assert_within
from attnkit_conformance.measuring import measuring
from attnkit_conformance.packages import Entry, Package, PackageError, problems
from attnkit_conformance.subject import lse_dtype
from attnkit_conformance.vectors.chain import NAME
from attnkit_conformance.vectors.layouts import diagnose
from attnkit_conformance.vectors.probing import ATTENDING, SELECTING, seen, selected

Array = np.ndarray[Any, Any]
Status = Literal["right", "wrong", "missing", "refused"]
_MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one array of one case.

    Attributes
    ----------
    case, role
        Which: ``"causal-float16"``, ``"output"`` or ``"lse"``.
    status
        ``"right"``, ``"wrong"``, ``"missing"``, or ``"refused"`` where the case was.
    ratio
        The largest error in units of its bound.
    message
        What is wrong.
    """

    case: str
    role: str
    status: Status
    ratio: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of all answers.

    Attributes
    ----------
    damage
        What is not as it was written in the package; then nothing was verified.
    findings
        One for each expected array.
    """

    damage: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Whether every answer is right or a refusal, and there is any that is right."""
        statuses = {finding.status for finding in self.findings}
        return not self.damage and "right" in statuses and statuses <= {"right", "refused"}


def verify(vectors: Path | str, outputs: Path | str) -> Verification:
    """Hold answers to golden vectors.

    Parameters
    ----------
    vectors
        The package of vectors.
    outputs
        A folder of ``CASE/out/output.bin`` (and ``lse.bin``), a package or not.

    Raises
    ------
    PackageError
        If one of them is no such folder, or a package of answers is not as it was written.
    """
    package, folder = Package.open(Path(vectors)), Path(outputs)
    if package.kind != "vectors":
        raise PackageError(f"{vectors}: must be a package of vectors, got one of {package.kind}")
    if not folder.is_dir():
        raise PackageError(f"{outputs}: must be a folder of CASE/out/output.bin, there is none")
    if (folder / "manifest.json").exists() and (damage := problems(folder)):
        raise PackageError(f"{outputs} is not as it was written: {'; '.join(damage[:5])}")
    if damage := problems(package.path):
        return Verification(tuple(damage), ())
    found = [finding for name in package.names for finding in _case(package.read(name), folder / name / "out")]
    return Verification((), tuple(found))


def _case(entry: Entry, folder: Path) -> list[Finding]:
    wanted = {"output": entry.told.dtype, "lse": lse_dtype(entry.told.dtype)}
    expected = {role: dtype for role, dtype in wanted.items() if role in entry.truth}
    if (folder / "refused.txt").is_file():
        codes = (folder / "refused.txt").read_bytes()[:200].decode("utf-8", "replace").strip()
        return [Finding(entry.name, role, "refused", message=f"refused: {codes}") for role in expected]
    return [_array(entry, role, dtype, folder) for role, dtype in expected.items()]


def _array(entry: Entry, role: str, dtype: str, folder: Path) -> Finding:
    expected, tau, place = entry.truth[role], entry.truth[f"{role}_tau"], folder / f"{role}.bin"
    if not place.is_file():
        return Finding(entry.name, role, "missing", message=f"no {entry.name}/out/{role}.bin")
    if place.stat().st_size > _MOST_BYTES:
        return Finding(entry.name, role, "wrong", np.inf, f"{role}.bin: {place.stat().st_size} bytes are too many")
    content, size = place.read_bytes(), expected.size * np.dtype(dtype).itemsize
    if len(content) == size:
        array = np.frombuffer(content, np.dtype(dtype).newbyteorder("<") if dtype != "bfloat16" else np.dtype(dtype))
        ratio, message = _compared(array.reshape(expected.shape), expected, tau, role)
    else:
        ratio = np.inf
        message = f"{role}: must be {size} bytes ({dtype} {list(expected.shape)}), got {len(content)}"
        array = np.zeros(0)
    if not message:
        return Finding(entry.name, role, "right", ratio)
    known = diagnose(content, dtype, expected.shape, lambda read: not _compared(read, expected, tau, role)[1])
    details = [known and f"{known}; read so, every element is right", *_details(entry, role, array)]
    return Finding(entry.name, role, "wrong", ratio, "; ".join(filter(None, (message, *details))))


def _compared(array: Array, expected: Array, tau: Array, role: str) -> tuple[float, str]:
    """Give the largest error in units of its bound, and what is wrong."""
    if not expected.size:
        return 0.0, ""
    with measuring() as notes, np.errstate(all="ignore"):
        try:
            assert_within(array, expected, tau, what=role)
        except AssertionError as error:
            return max((note.ratio for note in notes), default=np.inf), str(error)
    return max(note.ratio for note in notes), ""


def _details(entry: Entry, role: str, array: Array) -> list[str]:
    """Say more of what a probe, or the chain, shows."""
    if role != "output" or array.size != entry.truth["output"].size:
        return []
    output = array.reshape(entry.case.output_shape)
    if entry.name.startswith(ATTENDING):
        return seen(entry.case, output)[:8]
    if entry.name.startswith(SELECTING):
        return selected(entry.case, output)
    if entry.name.startswith(f"{NAME}-"):
        near = np.abs(np.asarray(output, np.float64) - entry.truth["output"]) <= entry.truth["output_tau"]
        differs = ~near.all(axis=(0, 1, 3))
        step = int(np.argmax(differs))
        return [f"the chain derails at step {step}: {int(differs.sum())} of {differs.size} steps are wrong"]
    return []


def summary(found: Verification) -> Mapping[str, Any]:
    """Give the outcome as plain data, as ``report.json`` holds it."""
    counts = {
        status: sum(f.status == status for f in found.findings) for status in ("right", "wrong", "missing", "refused")
    }
    rows = [
        {"case": f.case, "role": f.role, "status": f.status, "ratio": repr(f.ratio), "message": f.message}
        for f in found.findings
    ]
    return {"agrees": found.agrees, "damage": list(found.damage), "counts": counts, "findings": rows}
