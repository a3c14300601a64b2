"""Journal: the results of a run as lines of JSON, each on the disk as soon as it is known.

The first line is ``{"header": ...}``, then comes one ``{"result": ...}`` for every item, and ``{"footer": ...}`` ends a
run that came to its end. A crash loses at most the line that was being written.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from attnkit_conformance.results import Footer, Header, Report, Result


class ReportError(ValueError):
    """A file is no report; the message names the file, the line, and what is wrong there."""


class Line(BaseModel):
    """One line; exactly one field is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    header: Header | None = None
    result: Result | None = None
    footer: Footer | None = None


class Journal:
    """A journal that is being written; a context manager, which closes the file.

    Parameters
    ----------
    path
        The file. ``start`` makes it anew, with the folders above it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, header: Header) -> None:
        """Begin with what is going to be run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8", newline="\n")
        self._write("header", header)

    def add(self, result: Result) -> None:
        """Write what came of an item."""
        self._write("result", result)

    def finish(self, footer: Footer) -> None:
        """Write how the run ended, and close the file."""
        self._write("footer", footer)
        self.close()

    def close(self) -> None:
        """Close the file, of a run that is cut short too."""
        if hasattr(self, "_file"):
            self._file.close()

    def _write(self, kind: str, model: BaseModel) -> None:
        self._file.write(f'{{"{kind}":{model.model_dump_json()}}}\n')
        self._file.flush()


def read_journal(path: Path) -> Report:
    """Read a journal, of a run that was cut short too: its last line may be torn.

    Raises
    ------
    ReportError
        If there is no header, if any line but the last is not one of a journal, or if lines follow the footer.
    """
    *whole, last = path.read_bytes().split(b"\n")
    lines = [_line(path, number, text) for number, text in enumerate(whole, 1)]
    lines += _torn(last)
    if not lines or lines[0].header is None:
        raise ReportError(f"{path}: line 1 must be the header of a run; is this a journal?")
    for number, line in enumerate(lines[1:], 2):
        if line.header or lines[number - 2].footer:
            raise ReportError(f"{path}: line {number}: one header at the start, one footer at the end")
    results = tuple(line.result for line in lines if line.result)
    return Report(header=lines[0].header, results=results, footer=lines[-1].footer)


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        line = Line.model_validate_json(text)
    except ValidationError as error:
        raise ReportError(f"{path}: line {number}: {explained(error)}") from error
    if len(line.model_fields_set) != 1:
        raise ReportError(f"{path}: line {number}: must be a header, a result or a footer, got {text[:60]!r}")
    return line


def _torn(text: bytes) -> list[Line]:
    """Give the line that has no end, unless more than its end is missing."""
    try:
        return [Line.model_validate_json(text)] if text else []
    except ValidationError:
        return []


def explained(error: ValidationError) -> str:
    """Say in one line what pydantic found first."""
    first, *more = error.errors(include_url=False)
    place = ".".join(map(str, first["loc"]))
    rest = f" (and {len(more)} more)" if more else ""
    return f"{place}: {first['msg']}{rest}" if place else f"{first['msg']}{rest}"
