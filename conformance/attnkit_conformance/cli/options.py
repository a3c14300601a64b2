"""What the commands share: options, wrong use, and reading a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli.loading import wrong_use
from attnkit_conformance.custom import CustomNumerics
from attnkit_conformance.reports.files import REPORT, load_report
from attnkit_conformance.reports.journal import ReportError
from attnkit_conformance.requirements import LEVELS
from attnkit_conformance.results import Report

__all__ = ["JOURNAL", "JsonOption", "LevelOption", "SeedOption", "declaration", "read_report", "wrong_use"]

JOURNAL = "journal.jsonl"
"""The journal's name in the folder of a report."""
_WORDS = ", ".join(f"{number} {word}" for number, word in LEVELS.items())
LevelOption = Annotated[int, typer.Option(min=0, max=3, help=f"Up to this level: {_WORDS}.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def declaration(path: Path) -> CustomNumerics:
    """Read numerics of one's own; wrong use where it is none."""
    try:
        return CustomNumerics.load(path)
    except (OSError, ValueError) as error:
        wrong_use(f"--numerics: {path}: {error}")


def read_report(path: Path) -> Report:
    """Read a ``report.json``, a journal, or whichever of them a folder holds; wrong use where there is none."""
    try:
        return load_report(_place(path))
    except ReportError as error:
        wrong_use(str(error))


def _place(path: Path) -> Path:
    """Give the journal of a folder that has no report, since the run in it was cut short."""
    torn = path.is_dir() and not (path / REPORT).exists() and (path / JOURNAL).exists()
    return path / JOURNAL if torn else path
