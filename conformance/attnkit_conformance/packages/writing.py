"""PackageWriter: a package, written beside its place and moved there when it is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from attnkit_conformance.cases import Case
from attnkit_conformance.packages.describing import describe, lines
from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.packages.files import digest, write_array
from attnkit_conformance.packages.folder import INDEX, MANIFEST, SUMS, FileFacts, Kind, Manifest

Array = np.ndarray[Any, Any]
CONTRACT = "1.0"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+,=-]{0,150}")
_PARTS = {"in": "in", "out": "out", "truth": "expected"}


class PackageWriter:
    """Writes a package; a context manager, at whose end it is there, whole.

    Parameters
    ----------
    path
        A folder that is not there yet, or is empty.
    kind, numerics, made_by, about
        See ``Manifest``.
    texts
        More files: their names and contents.

    Raises
    ------
    PackageError
        If the folder is not empty.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind,
        *,
        numerics: Mapping[str, str],
        made_by: str = "",
        about: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise PackageError(f"{path}: must be a new or an empty folder")
        self._place = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self._kind, self.numerics, self.made_by = kind, dict(numerics), made_by
        self.about: dict[str, Any] = dict(about or {})
        self._texts = dict(texts or {})
        self._names: list[str] = []
        self._index = ["case\trole\tdtype\tcount\tshape\tfile"]

    def __enter__(self) -> Self:
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            return
        self._finish()

    def add(
        self,
        name: str,
        case: Case,
        *,
        outputs: Mapping[str, Array] | None = None,
        refused: str = "",
        truth: Mapping[str, Array] | None = None,
        lse: bool = True,
    ) -> None:
        """Add a call, what came of it, and what is right; it is on disk when this returns.

        Raises
        ------
        PackageError
            If the name is taken, or none for a folder.
        """
        if not _NAME.fullmatch(name) or name in self._names:
            raise PackageError(f"{name!r}: must be a new name of letters, digits and . _ + , = -")
        told, arrays = describe(case, lse=lse)
        folder = self._place / name
        folder.mkdir()
        self._names.append(name)
        (folder / "case.json").write_text(told.model_dump_json(indent=1, exclude_none=True) + "\n", "utf-8")
        (folder / "case.tsv").write_text("".join(f"{line}\n" for line in lines(told)), "utf-8")
        for part, held in (("in", arrays), ("out", outputs or {}), ("truth", truth or {})):
            for role, array in held.items():
                self._add_array(name, part, role, np.asarray(array))
        if refused:
            (folder / "out").mkdir(exist_ok=True)
            (folder / "out" / "refused.txt").write_text(f"{refused}\n", "utf-8")

    def _add_array(self, name: str, part: str, role: str, array: Array) -> None:
        place = f"{name}/{part}/{role}.bin"
        write_array(self._place / place, array)
        word = "tau" if role.endswith("_tau") else _PARTS[part]
        shape = "x".join(map(str, array.shape))
        told = (name, f"{word}.{role.removesuffix('_tau')}", array.dtype.name, str(array.size), shape or "1", place)
        self._index.append("\t".join(told))

    def _finish(self) -> None:
        (self._place / INDEX).write_text("".join(f"{line}\n" for line in self._index), "utf-8")
        for name, text in self._texts.items():
            (self._place / name).write_text(text, "utf-8")
        files = {
            path.relative_to(self._place).as_posix(): FileFacts(bytes=path.stat().st_size, sha256=digest(path))
            for path in sorted(self._place.rglob("*"))
            if path.is_file()
        }
        manifest = Manifest(
            kind=self._kind,
            contract=CONTRACT,
            suite=version("attnkit"),
            made_by=self.made_by,
            numerics=self.numerics,
            cases=tuple(self._names),
            files=files,
            about=self.about,
        )
        text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
        (self._place / MANIFEST).write_text(text, "utf-8")
        sums = {name: facts.sha256 for name, facts in files.items()} | {MANIFEST: digest(self._place / MANIFEST)}
        text = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        (self._place / SUMS).write_text(text, "utf-8")
        if self.path.exists():
            self.path.rmdir()
        self._place.replace(self.path)
