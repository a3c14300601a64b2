"""``attnkit conform diff``: what changed between two reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli.output import FAULT, print_json, print_line
from attnkit_conformance.cli.options import JsonOption, read_report
from attnkit_conformance.reports.diff import compare


def diff(
    old: Annotated[Path, typer.Argument(help="The earlier report.json, or its folder.")],
    new: Annotated[Path, typer.Argument(help="The later one.")],
    json: JsonOption = False,
) -> None:
    """Compare two reports: what fails now, what holds now, what came and went, and errors that grew.

    Exits with 1 where the later one is worse.
    """
    difference = compare(read_report(old), read_report(new))
    if json:
        print_json({"worse": difference.is_worse, **difference.model_dump(mode="json")})
    else:
        for line in difference.lines():
            print_line(line)
    if difference.is_worse:
        raise typer.Exit(FAULT)
