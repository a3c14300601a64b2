"""Sides: whoever answers requests: a backend in this process or in one of its own, or answers that were written down.

A side is never believed and never fatal: what it raises, refuses, or leaves behind when it dies is its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import attnkit as ak
from attnkit.tolerance import Arithmetic
from attnkit_conformance.cases import Case
from attnkit_conformance.crosscheck.calls import BrokenPromiseError
from attnkit_conformance.custom import arithmetic_of
from attnkit_conformance.harness.failures import BackendGone, BackendHung
from attnkit_conformance.packages import Package, PackageError, problems
from attnkit_conformance.subject import Answer, Subject, codes_of
from attnkit_conformance.subjects import Subjects


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that a side does not take: the codes of its reasons."""

    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that gave nothing, or broke a promise: how (``"error"``, ``"died"``, ``"law"``, ...), and in words."""

    how: str
    message: str


Given = Answer | Refused | Failed
"""What a side gives."""


class Side(Protocol):
    """Whoever answers.

    Attributes
    ----------
    name
        As on a command line.
    source
        Where it comes from, in words.
    """

    name: str
    source: str

    def numerics(self, dtype: str) -> Arithmetic:
        """Give the numerics that outputs of an element type are held to."""

    def answer(self, case: Case) -> Given:
        """Answer a request; the log-sum-exp is given where the side has it."""

    def close(self) -> None:
        """Let go of processes."""


class Live:
    """A backend, asked now.

    Parameters
    ----------
    target
        See ``attnkit_conformance.harness.targets``; or a backend, or a subject, itself.
    isolated
        It gets a process of its own, and another one whenever that ends.
    seconds
        Time for a request.
    numerics
        Element type -> what to hold it to in the place of what it declares, see ``Subject``.
    """

    def __init__(
        self,
        target: str | ak.Backend | Subject,
        *,
        isolated: bool = False,
        seconds: float = 60.0,
        numerics: Mapping[str, str] | None = None,
    ) -> None:
        self._subjects = (
            _Same(target, numerics)
            if isinstance(target, Subject)
            else Subjects(target, isolated=isolated, numerics=numerics)
        )
        self._seconds = seconds
        self.name = self._subjects.name
        self.source = self._subjects.current().description.source
        self.capabilities = self._subjects.current().capabilities

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def numerics(self, dtype: str) -> Arithmetic:
        """Give the numerics that outputs of an element type are held to."""
        return arithmetic_of(self.capabilities.numerics[dtype], dtype)

    def answer(self, case: Case) -> Given:
        """Ask; what is not declared is not asked for."""
        missing = case.undeclared(self.capabilities)
        if missing:
            return Refused(missing)
        try:
            subject = self._subjects.current()
            subject.harness.allow(self._seconds)
            return case.call(subject)
        except ak.UnsupportedError as error:
            return Refused(tuple(sorted(codes_of(error))))
        except BackendGone as error:
            return Failed("hung" if isinstance(error, BackendHung) else "died", str(error))
        except BrokenPromiseError as error:
            return Failed(error.what, str(error))
        except Exception as error:  # a backend may raise anything
            return Failed("error", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """End its process, if it has one."""
        self._subjects.close()


class _Same(Subjects):
    """A subject that is there already."""

    def __init__(self, subject: Subject, numerics: Mapping[str, str] | None) -> None:
        super().__init__(subject.name)
        self._subject = Subject(subject.harness, numerics) if numerics else subject


class Recorded:
    """Answers that were written down: a package with outputs.

    Parameters
    ----------
    path
        Its folder.
    numerics
        Element type -> what to hold it to in the place of what it says.

    Raises
    ------
    PackageError
        If it is none, or a file in it is not what was written.
    """

    def __init__(self, path: Path, numerics: Mapping[str, str] | None = None) -> None:
        found = problems(path)
        if found:
            raise PackageError(f"{path}: {'; '.join(found[:3])}")
        self.package = Package.open(path)
        manifest = self.package.manifest
        self._numerics = {**manifest.numerics, **(numerics or {})}
        self.name = str(path)
        self.source = f"{manifest.kind} of {len(manifest.cases)} calls by {manifest.made_by or 'nobody named'}"

    def requests(self) -> Iterator[Case]:
        """Give its calls."""
        return (self.package.read(name).case for name in self.package.names)

    def numerics(self, dtype: str) -> Arithmetic:
        """Give the numerics that it says its outputs are of."""
        return arithmetic_of(self._numerics[dtype], dtype)

    def answer(self, case: Case) -> Given:
        """Look the call up by its name."""
        if case.label not in self.package.names:
            return Refused(("not recorded",))
        entry = self.package.read(case.label)
        if entry.refused:
            return Refused((entry.refused,))
        if "output" not in entry.outputs:
            return Refused(("no output",))
        return Answer(entry.outputs["output"], entry.outputs.get("lse"))

    def close(self) -> None:
        """Do nothing."""
