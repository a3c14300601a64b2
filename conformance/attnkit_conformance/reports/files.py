"""Files of a report: one folder that people, CI systems and other programs each read their own file of.

``report.json`` is the report itself, with ``report.schema.json`` beside this module to tell its form; all others are
made from it: ``report.html`` and ``support.md`` for people, ``junit.xml`` for CI systems, ``support.csv`` and
``support.json`` for tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from attnkit_conformance.reports import support
from attnkit_conformance.reports.html import html_text
from attnkit_conformance.reports.journal import ReportError, explained, read_journal
from attnkit_conformance.reports.junit import junit_text
from attnkit_conformance.results import Report

REPORT = "report.json"
_WRITERS: dict[str, Callable[[Report], str]] = {
    "junit.xml": junit_text,
    "report.html": html_text,
    "support.md": support.markdown,
    "support.csv": support.csv_text,
    "support.json": support.json_text,
    REPORT: lambda report: report.model_dump_json(indent=2) + "\n",
}


def write_report(report: Report, folder: Path) -> None:
    """Write all files of a report into a folder, which is made where it is missing.

    Each file is there as a whole or not at all, and ``report.json`` comes last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _WRITERS.items():
        _replace(folder / name, text(report))


def load_report(path: Path) -> Report:
    """Read a report: a ``report.json``, a folder that holds one, or the journal (``.jsonl``) of a run.

    Raises
    ------
    ReportError
        If there is none, or if it is not one.
    """
    place = path / REPORT if path.is_dir() else path
    if not place.is_file():
        raise ReportError(f"{place}: there is no such file; give a report.json, the folder of one, or a journal")
    if place.suffix == ".jsonl":
        return read_journal(place)
    try:
        return Report.model_validate_json(place.read_bytes())
    except ValidationError as error:
        raise ReportError(f"{place}: {explained(error)}") from error


def schema_text() -> str:
    """Give the JSON schema of ``report.json``, as it is shipped in ``report.schema.json``."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | Report.model_json_schema(mode="serialization"), indent=2) + "\n"


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8", newline="\n")
    beside.replace(path)
