"""``attnkit conform report``: the files of a report made anew, of a run that was cut short too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli.output import print_json, print_line
from attnkit_conformance.cli.options import JsonOption, read_report
from attnkit_conformance.reports.files import write_report
from attnkit_conformance.reports.kinds import count
from attnkit_conformance.results import Report


def report(
    source: Annotated[Path, typer.Argument(help="A report's folder, its report.json, or the journal of a run.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: where the source lies.")] = None,
    json: JsonOption = False,
) -> None:
    """Write the files of a report: JSON, JUnit, HTML, and the support matrix; of a journal that is torn too."""
    found = read_report(source)
    folder = out or (source if source.is_dir() else source.parent)
    write_report(found, folder)
    verdict = _verdict(found)
    if json:
        print_json({"verdict": verdict, "folder": str(folder), "results": len(found.results)})
        return
    print_line(verdict)
    print_line(f"{len(found.results)} results in {folder / 'report.html'}")


def _verdict(report: Report) -> str:
    if report.footer is not None:
        return report.footer.verdict
    failed = count(report.results)["failed"]
    return f"INCOMPLETE: cut short after {len(report.results)} items, of which {failed} failed"
