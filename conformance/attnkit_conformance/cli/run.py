"""``attnkit conform run``: a backend in a process of its own, held to the contract."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from attnkit.cli.output import FAULT, console, print_json, print_line
from attnkit_conformance.cli.options import JOURNAL, JsonOption, LevelOption, SeedOption, declaration, wrong_use
from attnkit_conformance.cli.progress import Watch
from attnkit_conformance.cli.summary import record, summary
from attnkit_conformance.conformance import run_conformance
from attnkit_conformance.items import items
from attnkit_conformance.reports.files import REPORT, write_report
from attnkit_conformance.results import GOOD, Report
from attnkit_conformance.verdict import is_conformant
from attnkit_conformance.waivers import load_waivers

_COLOURS = {"CONFORMANT": "green", "CUSTOM": "green", "NOT": "red"}


def run(
    target: Annotated[str, typer.Argument(help="NAME, NAME:PATH, module:factory or cmd:PROGRAM.")],
    level: LevelOption = 2,
    seed: SeedOption = 0,
    sample: Annotated[float, typer.Option(help="Only this share of the items, chosen by the seed: > 0, up to 1.")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="Only ids that match this pattern; may be repeated.")] = None,
    device: Annotated[str, typer.Option(help="Where arrays are to lie, such as cuda:0.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that an item may take.")] = 60,
    waivers: Annotated[Path | None, typer.Option(help="A TOML file of waivers.")] = None,
    numerics: Annotated[Path | None, typer.Option(help="Hold it to numerics of its own: JSON or TOML.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report into this folder, with reproducers.")] = None,
    repro: Annotated[Path | None, typer.Option(help="Write reproducers into this folder instead.")] = None,
    in_process: Annotated[bool, typer.Option("--in-process", help="For a debugger; never a verdict.")] = False,
    json: JsonOption = False,
) -> None:
    """Run the suite on a backend and give the verdict; exits with 1 where it does not conform.

    Progress goes to standard error; the verdict, and which conventions are broken, to standard output.
    """
    if not 0 < sample <= 1:
        wrong_use(f"--sample must be > 0 and up to 1, got {sample:g}")
    asked = {
        "level": level,
        "seed": seed,
        "sample": sample,
        "only": tuple(only or ()),
        "isolated": not in_process,
        "device": device,
        "timeout": timeout,
        "numerics": None if numerics is None else declaration(numerics).declared,
        "repro": report / "repro" if report and not repro else repro,
    }
    if in_process:
        sys.path.insert(0, "")  # as in the process of a backend, which 'module:factory' is found from
    done = _run(target, asked, waivers, report)
    if report is not None:
        write_report(done, report)
    _print(done, report, json=json)
    if not _is_fine(done):
        raise typer.Exit(FAULT)


def _run(target: str, asked: Mapping[str, Any], waivers: Path | None, folder: Path | None) -> Report:
    """Run the suite under the eyes of a person; what is asked for wrongly is told in one line."""
    total = None if asked["only"] else len(items(asked["level"], seed=asked["seed"], sample=asked["sample"]))
    journal = None if folder is None else _fresh(folder)
    try:
        known = () if waivers is None else load_waivers(waivers)
        with Watch(total) as watch:
            return run_conformance(target, **asked, waivers=known, journal=journal, on_result=watch.add)
    except ValueError as error:  # of the target, the waivers, or a pattern that fits nothing
        wrong_use(str(error))
    except KeyboardInterrupt:
        if journal is not None:
            console(stderr=True).print(f"cut short; 'attnkit conform report {folder}' has what is known", markup=False)
        raise


def _fresh(folder: Path) -> Path:
    """Give the place of the journal; an earlier report goes, lest it be taken for that of a run that is cut short."""
    (folder / REPORT).unlink(missing_ok=True)
    return folder / JOURNAL


def _print(report: Report, folder: Path | None, *, json: bool) -> None:
    if json:
        print_json(record(report) | {"report": None if folder is None else str(folder)})
        return
    verdict, *lines = summary(report)
    console().print(Text(verdict, style=f"bold {_COLOURS.get(verdict.partition(' ')[0], 'yellow')}"))
    for line in lines:
        print_line(line)
    if folder is not None:
        print_line(f"report: {folder / 'report.html'}")


def _is_fine(report: Report) -> bool:
    """Tell whether a backend conforms; or, where only a part was asked for, whether nothing in it was wrong."""
    header, footer = report.header, report.footer
    if header.partial or header.sample < 1 or not header.isolated:
        return all(result.status in GOOD for result in report.results)
    return footer is not None and is_conformant(footer.verdict)
