"""``attnkit crosscheck A B``: two implementations, the same requests, and the oracle to say which of them is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import attnkit as ak
from attnkit.cli.output import FAULT, console, print_line, print_table, reports_errors
from attnkit_conformance.cases import DTYPES, Case
from attnkit_conformance.cli.options import SeedOption, declaration, wrong_use
from attnkit_conformance.crosscheck import requests as asking
from attnkit_conformance.crosscheck.checking import crosscheck
from attnkit_conformance.crosscheck.fuzzing import fuzz
from attnkit_conformance.crosscheck.judging import NAMES, Name
from attnkit_conformance.crosscheck.report import CrossReport, Finding, Statistics
from attnkit_conformance.crosscheck.sides import Live, Recorded
from attnkit_conformance.harness.failures import BackendGone
from attnkit_conformance.harness.targets import TargetError
from attnkit_conformance.packages import PackageError
from attnkit_conformance.packages.folder import MANIFEST

_GROUPS = f"{', '.join((*asking.GROUPS, asking.SUITE))}, or {asking.FORM}"
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
@reports_errors
def command(
    a: Annotated[str, typer.Argument(help="NAME, NAME:PATH, module:factory or cmd:PROGRAM.")],
    b: Annotated[str, typer.Argument(help="The other one; each may be a folder of recorded answers too.")],
    cases: Annotated[str, typer.Option(help=f"What to ask: {_GROUPS}; several with ';'.")] = "",
    recorded: Annotated[Path | None, typer.Option(help="Ask what a recording, or another package, holds.")] = None,
    fuzz_count: Annotated[int, typer.Option("--fuzz", min=0, help="How many requests at random.")] = 0,
    seed: SeedOption = 0,
    dtype: Annotated[
        str, typer.Option(help=f"Element types, of {','.join(DTYPES)}; default: all that both take.")
    ] = "",
    drift: Annotated[bool, typer.Option("--drift", help="Ask for longer and longer sums too.")] = False,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Each side in a process of its own: crashes and hangs are findings.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a request may take, with --isolated.")] = 60,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first request on which a side is wrong.")] = False,
    repro: Annotated[
        Path | None, typer.Option(help="Write programs that show what was found into this folder.")
    ] = None,
    numerics_a: Annotated[Path | None, typer.Option(help="Hold A to numerics of its own: JSON or TOML.")] = None,
    numerics_b: Annotated[Path | None, typer.Option(help="The same for B.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page; '.json' writes JSON.")] = None,
    model: Annotated[
        str, typer.Option(help="Run this model instead, layer by layer: smollm2, a GGUF file or a directory.")
    ] = "",
    text: Annotated[Path | None, typer.Option(help="The text for --model, UTF-8; default: a sentence.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="The most tokens of the text, with --model.")] = 48,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two implementations; exits with 1 where one of them is wrong.

    Distances are in units of the bounds that follow from the inputs: up to 1 is what rounding explains. By default 200
    requests at random are asked, and the suite's structures and laws.
    """
    sys.path.insert(0, "")  # 'module:factory' is found from where the command is run
    if model:
        from attnkit_conformance.crosscheck.model.cli import layer_by_layer

        layer_by_layer(a, b, model, text, tokens, dtype or "float32", report, json=json)
        return
    own = [None if path is None else declaration(path).declared for path in (numerics_a, numerics_b)]
    with _sides(zip((a, b), own, strict=True), isolated=isolated, seconds=timeout) as sides:
        dtypes = _dtypes(dtype, sides)
        replayed = _replayed(sides, recorded)
        usual = not (cases or fuzz_count or replayed)
        count, spec = fuzz_count or 200 * usual, cases or asking.USUAL * usual
        told = "" if replayed is None else replayed.source
        at_random = f"{count} at random, seed {seed}" if count else ""
        found = crosscheck(
            sides[0],
            sides[1],
            chain(replayed.requests() if replayed else (), _requests(spec, count, seed, dtypes)),
            drift=asking.drift(dtypes, seed) if drift else (),
            what="; ".join(filter(None, (told, spec, at_random, ", ".join(dtypes)))),
            keep_going=not first,
            repro=repro,
        )
    _give(found, report, json=json)
    if not found.agree:
        raise typer.Exit(FAULT)


@contextmanager
def _sides(
    targets: Iterable[tuple[str, Mapping[str, str] | None]], *, isolated: bool, seconds: float
) -> Iterator[list[Live | Recorded]]:
    opened: list[Live | Recorded] = []
    try:
        try:
            for target, own in targets:  # one after the other: those that were opened are closed if the next cannot be
                place = Path(target)
                recorded = (place / MANIFEST).is_file()
                opened.append(
                    Recorded(place, own) if recorded else Live(target, isolated=isolated, seconds=seconds, numerics=own)
                )
        except (TargetError, BackendGone, PackageError) as error:
            wrong_use(str(error))
        yield opened
    finally:
        for side in opened:
            side.close()


def _replayed(sides: Iterable[Live | Recorded], folder: Path | None) -> Recorded | None:
    """Give the package whose calls are asked: the one that is named, or the side that is one."""
    try:
        named = None if folder is None else Recorded(folder)
    except PackageError as error:
        wrong_use(f"--recorded: {error}")
    return named or next((side for side in sides if isinstance(side, Recorded)), None)


def _dtypes(asked: str, sides: Iterable[Live | Recorded]) -> list[str]:
    wanted = [name for name in asked.split(",") if name] or list(DTYPES)
    if unknown := sorted(set(wanted) - set(DTYPES)):
        wrong_use(f"--dtype must be of {', '.join(DTYPES)}, got {', '.join(unknown)}")
    live = [side for side in sides if isinstance(side, Live)]
    both = [name for name in wanted if all(name in side.capabilities.dtypes for side in live)]
    if not both:
        wrong_use(f"no element type among {', '.join(wanted)} is taken by both")
    return both if not asked else wanted


def _requests(spec: str, count: int, seed: int, dtypes: list[str]) -> Iterator[Case]:
    """Give what is to be asked; what is drawn at random is drawn when its turn comes, and not kept."""
    try:
        found = asking.requests(spec, dtypes, seed) if spec else []
    except (asking.SpecError, ak.AttnkitError) as error:
        wrong_use(f"--cases: {error}")
    return chain(found, fuzz(count, seed, dtypes))


def _give(found: CrossReport, report: Path | None, *, json: bool) -> None:
    text = found.model_dump_json(indent=2)
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(text + "\n" if report.suffix == ".json" else _page(found), "utf-8")
    if json:
        typer.echo(text)
        return
    _print(found)
    if report is not None:
        print_line(f"report: {report}")


def _page(found: CrossReport) -> str:
    from attnkit_conformance.crosscheck.page import page

    return page(found)


def _print(found: CrossReport) -> None:
    names = {side: found.sides[side].name for side in NAMES}
    verdict = "AGREE" if found.agree else "NOTHING TO COMPARE" if not found.findings else "DIFFER"
    console().print(Text(f"{verdict}: A = {names['A']}, B = {names['B']}", style="bold " + _COLOURS[verdict]))
    print_line(f"{found.compared} of {found.asked} requests compared in {found.seconds:.1f} s ({found.what})")
    for reason, count in found.skipped.items():
        print_line(f"  {count} not compared: {reason}")
    if found.statistics:
        print_table(_COLUMNS, map(_row, found.statistics))
    for finding in found.findings:
        for line in _told(finding, names):
            print_line(line)
    if found.more:
        print_line(f"and {found.more} more requests on which a side is wrong")


_COLOURS = {"AGREE": "green", "DIFFER": "red", "NOTHING TO COMPARE": "yellow"}
_COLUMNS = ("part", "dtype", "elements", "|A-B| / (τA+τB)", "A / τA", "B / τB", "rms A", "rms B", "worst request")


def _row(line: Statistics) -> list[str]:
    numbers = (line.apart, line.error["A"], line.error["B"], line.rms["A"], line.rms["B"])
    return [line.part, line.dtype, str(line.elements), *(f"{number:.3g}" for number in numbers), line.worst]


def _told(finding: Finding, names: dict[Name, str]) -> Iterator[str]:
    conventions = {side for side in finding.complaints if finding.conventions.get(side)}
    word = "convention" if conventions == set(finding.complaints) else "wrong"
    yield f"{word}: {', '.join(names[side] for side in finding.complaints)} on {finding.case}"
    for side, complaint in finding.complaints.items():
        yield f"    {names[side]}: {complaint}"
        for convention in finding.conventions.get(side, ()):
            yield f"    {names[side]}: convention: {convention}"
    for title, text in (("where", finding.explanation), ("why", finding.weights), ("smallest", finding.smallest)):
        if text:
            yield f"    {title}: {text}"
    if finding.folder:
        yield f"    program: {finding.folder}/repro.py"
