"""Package: a folder of calls, read: nothing in it is executed, and nothing outside of it is looked at.

=======================  ================================================================================
``manifest.json``        what kind it is, versions, numerics, names of the cases, size and SHA-256 of each file
``SHA256SUMS``           the same for ``sha256sum -c``
``index.tsv``            case, role, element type, count, shape, file: all that a checker reads
``CASE/case.json``       the call; ``CASE/case.tsv`` the same as lines
``CASE/in/ROLE.bin``     its arrays
``CASE/out/...``         what an implementation gave: ``output.bin``, ``lse.bin``, or ``refused.txt`` with a code
``CASE/truth/...``       ``output.bin``, ``lse.bin``, ``output_tau.bin``, ``lse_tau.bin``: what is right, and how nearly
=======================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from attnkit_conformance.cases import Case
from attnkit_conformance.packages.describing import CallDescription, case_of
from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.packages.files import inside, read_array
from attnkit_conformance.subject import lse_dtype

Array = np.ndarray[Any, Any]
Kind = Literal["vectors", "questions", "answers", "recording"]
FORMAT: Final = "attnkit-package"
MANIFEST, SUMS, INDEX = "manifest.json", "SHA256SUMS", "index.tsv"
TRUTH: Final = ("output", "lse", "output_tau", "lse_tau")
_MOST_JSON: Final = 1 << 26


class FileFacts(BaseModel):
    """Size and SHA-256 of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """What a package is.

    Attributes
    ----------
    format, format_version
        Of this folder.
    kind
        ``"vectors"``: calls and what is right. ``"questions"``: calls alone. ``"answers"``: what an implementation
        gave. ``"recording"``: calls that were made, with what came of them.
    contract, suite
        Versions.
    made_by
        Who gave the outputs, if there are any.
    numerics
        Element type -> profile that the tolerances, or the outputs, are of.
    cases
        Names, in order.
    files
        Every other file but ``SHA256SUMS``.
    about
        Anything else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["attnkit-package"] = FORMAT
    format_version: Literal[1] = 1
    kind: Kind
    contract: str
    suite: str
    made_by: str = ""
    numerics: Mapping[str, str]
    cases: tuple[str, ...]
    files: Mapping[str, FileFacts]
    about: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False)
class Entry:
    """One call of a package.

    Attributes
    ----------
    name, case
        What it is called, and the call.
    told
        It, as data.
    outputs
        What an implementation gave: ``output``, ``lse``.
    refused
        The code of a refusal, if that is what it gave.
    truth
        ``output``, ``lse``, and their ``..._tau``, in float64.
    """

    name: str
    case: Case
    told: CallDescription
    outputs: Mapping[str, Array] = field(default_factory=dict)
    refused: str = ""
    truth: Mapping[str, Array] = field(default_factory=dict)


class Package:
    """A package on disk; ``read`` gives its calls one by one."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a package.

        Raises
        ------
        PackageError
            If the folder is none.
        """
        place = Path(path) / MANIFEST
        if not place.is_file() or place.stat().st_size > _MOST_JSON:
            raise PackageError(f"{path}: no package, since it has no {MANIFEST}")
        try:
            return cls(Path(path), Manifest.model_validate_json(place.read_bytes()))
        except ValidationError as error:
            raise PackageError(f"{place}: {error.errors()[0]['msg']} at {error.errors()[0]['loc']}") from error

    @property
    def kind(self) -> Kind:
        """What it is of."""
        return self.manifest.kind

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its calls."""
        return self.manifest.cases

    def read(self, name: str) -> Entry:
        """Read a call.

        Raises
        ------
        PackageError
            If there is no such call, or something of it is missing or of the wrong size.
        """
        if name not in self.manifest.cases:
            raise PackageError(f"{self.path}: no case {name!r}")
        folder = inside(self.path, name)
        told = read_call(folder / "case.json")
        arrays = {
            role: read_array(inside(folder / "in", f"{role}.bin"), array.dtype, array.shape)
            for role, array in told.arrays.items()
        }
        case = case_of(told, arrays, label=name)
        refusal = folder / "out" / "refused.txt"
        refused = refusal.read_text("utf-8")[:200].strip() if refusal.is_file() else ""
        return Entry(name, case, told, given_in(folder / "out", told), refused, _truth(folder / "truth", told))


def read_call(path: Path) -> CallDescription:
    """Read the description of a call.

    Raises
    ------
    PackageError
        If it is none.
    """
    try:
        if path.stat().st_size > _MOST_JSON:
            raise PackageError(f"{path}: too large to be a call")
        return CallDescription.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise PackageError(f"{path}: no description of a call: {error}") from error


def given_in(folder: Path, told: CallDescription) -> dict[str, Array]:
    """Read what an implementation gave to a call: ``output``, and ``lse`` where it is there."""
    shape = told.batch, told.heads, told.queries
    wanted = {"output": (told.dtype, (*shape, told.value_dim)), "lse": (lse_dtype(told.dtype), shape)}
    return {
        role: read_array(folder / f"{role}.bin", dtype, size)
        for role, (dtype, size) in wanted.items()
        if (folder / f"{role}.bin").is_file()
    }


def _truth(folder: Path, told: CallDescription) -> dict[str, Array]:
    shape = told.batch, told.heads, told.queries
    return {
        role: read_array(
            folder / f"{role}.bin", "float64", (*shape, told.value_dim) if role.startswith("output") else shape
        )
        for role in TRUTH
        if (folder / f"{role}.bin").is_file()
    }
