"""``attnkit conform verify-report``: whether a report is whole and legal, without the backend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli.output import FAULT, print_json, print_line
from attnkit_conformance.cli.options import JsonOption, read_report
from attnkit_conformance.reports.verify import problems

_SHOWN = 20


def verify_report(
    file: Annotated[Path, typer.Argument(help="A report.json, or its folder.")], json: JsonOption = False
) -> None:
    """Check that a report has exactly one result for every item, and a verdict that follows from them.

    The backend is not run, and need not be installed. Exits with 1 where anything is wrong.
    """
    report = read_report(file)
    found = sorted(problems(report), key=lambda problem: not problem.startswith(("header", "footer")))
    if json:
        print_json({"problems": found})
    else:
        for line in [*found[:_SHOWN], *_rest(len(found))] or [
            f"{file}: whole and legal, {len(report.results)} results"
        ]:
            print_line(line)
    if found:
        raise typer.Exit(FAULT)


def _rest(number: int) -> list[str]:
    return [f"and {number - _SHOWN} more, see --json"] if number > _SHOWN else []
