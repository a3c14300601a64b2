"""Exchange: the folder of one call: its numbers go in, results come out, and what was not written is noticed.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``E`` value head size.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import Case
from attnkit_conformance.command.lines import CommandFailureError
from attnkit_conformance.packages.describing import CallDescription, describe, lines
from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.packages.files import read_array, write_array
from attnkit_conformance.subject import lse_dtype

Array = np.ndarray[Any, Any]
_CANARY: Final = {"float16": 0x7E5A, "bfloat16": 0x7FDA, "float32": 0x7FDA5A5A, "float64": 0x7FFDA5A5A5A5A5A5}
"""Bits of a NaN that no arithmetic makes: outputs are filled with it before the program runs."""
_SHARED = Path("/dev/shm")  # memory, where there is such a folder


class Exchange:
    """A scratch folder, one call at a time."""

    def __init__(self) -> None:
        place = _SHARED if _SHARED.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="attnkit-command-", dir=place))

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def put(self, case: Case, *, lse: bool) -> CallDescription:
        """Write a call, and outputs full of canaries."""
        self.clear()
        told, arrays = describe(case, lse=lse)
        self.folder.mkdir(exist_ok=True)
        (self.folder / "case.json").write_text(told.model_dump_json(exclude_none=True), "utf-8")
        (self.folder / "case.tsv").write_text("".join(f"{line}\n" for line in lines(told)), "utf-8")
        index = ["case\trole\tdtype\tcount\tshape\tfile"]
        for role, array in arrays.items():
            write_array(self.folder / "in" / f"{role}.bin", array)
            index.append(_row(f"in.{role}", array.dtype.name, array.shape, f"in/{role}.bin"))
        for role, dtype, shape in _outputs(told):
            write_array(self.folder / "out" / f"{role}.bin", _canaries(dtype, shape))
            index.append(_row(f"out.{role}", dtype, shape, f"out/{role}.bin"))
        (self.folder / "index.tsv").write_text("".join(f"{line}\n" for line in index), "utf-8")
        return told

    def take(self, told: CallDescription) -> ak.AttentionOutput:
        """Read the results.

        Raises
        ------
        CommandFailureError
            If a file is missing, of the wrong size, or was not written to its end.
        """
        found: dict[str, Array] = {}
        for role, dtype, shape in _outputs(told):
            try:
                array = read_array(self.folder / "out" / f"{role}.bin", dtype, shape)
            except (OSError, PackageError) as error:
                raise CommandFailureError(f"{role}: {error}") from error
            unwritten = _bits(array) == _CANARY[dtype]
            if unwritten.any():
                first = [int(n) for n in np.argwhere(unwritten)[0]]
                raise CommandFailureError(
                    f"{role}: {int(unwritten.sum())} of {array.size} elements were not written, first at {first}"
                )
            found[role] = array.copy()
        return ak.AttentionOutput(found["output"], found.get("lse"))

    def clear(self) -> None:
        """Forget the last call."""
        for name in ("in", "out"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def _outputs(told: CallDescription) -> list[tuple[str, str, tuple[int, ...]]]:
    shape = told.batch, told.heads, told.queries
    output = ("output", str(told.dtype), (*shape, told.value_dim))
    return [output, ("lse", lse_dtype(told.dtype), shape)] if told.lse else [output]


def _row(role: str, dtype: str, shape: tuple[int, ...], file: str) -> str:
    size = int(np.prod(shape, dtype=np.int64))
    return "\t".join(("call", role, dtype, str(size), "x".join(map(str, shape)) or "1", file))


def _canaries(dtype: str, shape: tuple[int, ...]) -> Array:
    kind = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return np.full(shape, _CANARY[dtype], kind).view(np.dtype(dtype))


def _bits(array: Array) -> Array:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))
