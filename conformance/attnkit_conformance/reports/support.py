"""Support matrix as text: Markdown for people, CSV and JSON for tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from pydantic import TypeAdapter

from attnkit_conformance.reports.matrix import Row, rows
from attnkit_conformance.results import Report

_ROWS = TypeAdapter(list[Row])
_SIGNS = {"holds": "✓ holds", "refused": "– refused", "fails": "✗ fails", "not measured": "· not measured"}


def markdown(report: Report) -> str:
    """Give the support matrix as a page of Markdown."""
    header = report.header
    origin = f"{_cell(header.source)}, contract {header.contract}, suite {header.suite}"
    names = ["capability", "declared", "measured", "answered", "refused", "failed", "not run", "worst error / τ"]
    return "\n".join(
        [
            f"# Support matrix of {_cell(header.backend)}",
            "",
            f"{origin}, level {header.level}, seed {header.seed}, {header.started}.",
            "",
            f"| {' | '.join(names)} |",
            "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
            *(f"| {' | '.join(_cells(row))} |" for row in rows(report)),
            "",
        ]
    )


def csv_text(report: Report) -> str:
    """Give it as comma-separated values with a line of names."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump() for row in rows(report))
    return out.getvalue()


def json_text(report: Report) -> str:
    """Give it as JSON: a list of lines, each an object."""
    return _ROWS.dump_json(rows(report), indent=2).decode() + "\n"


def _cells(row: Row) -> Iterator[str]:
    yield f"`{row.capability}`" + (f" {row.value}" if row.value else "")
    yield _cell(row.declared)
    yield _SIGNS[row.state]
    yield from (str(number or "") for number in (row.answered, row.refused, row.failed, row.not_run))
    yield "" if row.worst is None else f"{row.worst:.3g}"


def _cell(text: str) -> str:
    """Keep a text from ending a cell, or from being read as markup."""
    return "".join(f"\\{sign}" if sign in "\\|`*_[]<>" else sign for sign in " ".join(text.split()))
