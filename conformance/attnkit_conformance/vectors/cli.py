"""``attnkit vectors``: golden vectors written and verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli.loading import wrong_use
from attnkit.cli.output import FAULT, print_json, print_line, print_table, reports_errors
from attnkit_conformance.cli.options import declaration
from attnkit_conformance.vectors.exporting import DTYPES, export
from attnkit_conformance.vectors.formats import FORMATS
from attnkit_conformance.vectors.onnx_export import TOLD, export_onnx
from attnkit_conformance.vectors.report import page
from attnkit_conformance.vectors.verifying import Verification, summary, verify

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # as in attnkit itself
    help="Golden vectors for implementations without Python. Exit codes: 0 verified, 1 not, 2 wrong use.",
)


def export_vectors(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    cases: Annotated[str, typer.Option(help="core, hardware or full.")] = "core",
    dtype: Annotated[str, typer.Option(help=f"Element types, joined by commas: {', '.join(DTYPES)}.")] = "",
    numerics: Annotated[
        str, typer.Option(help="Profile of the bounds, or a file of one's own; by default the usual of each type.")
    ] = "",
    also: Annotated[str, typer.Option(help=f"More formats: {', '.join(FORMATS)}.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="Only the case of this label; may be repeated.")] = None,
) -> None:
    """Write calls, what they must give, and how nearly, bit for bit the same on any machine."""
    formats = [name for name in also.split(",") if name]
    own = declaration(Path(numerics)) if Path(numerics).suffix in (".json", ".toml") else numerics
    dtypes = [name for name in dtype.split(",") if name]
    try:
        left_out = export(folder, cases=cases, dtypes=dtypes, numerics=own, also=formats, only=only or ())
    except ValueError as error:  # of a name that there is not, or a folder in use
        wrong_use(str(error))
    for label, why in left_out.items():
        print_line(f"left out {label}: {why}")
    files = [place for place in folder.rglob("*") if place.is_file()]
    print_line(f"{folder}: {len(files)} files, {sum(place.stat().st_size for place in files)} bytes")


def verify_vectors(
    folder: Annotated[Path, typer.Argument(help="The package of vectors.")],
    outputs: Annotated[Path, typer.Option(help="The answers: CASE/out/output.bin, a package or not.")],
    report: Annotated[Path | None, typer.Option(help="Write out.html or out.json.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hold answers to golden vectors; exits with 1 where one is wrong or missing, or a file was changed."""
    if report is not None and report.suffix not in (".html", ".json"):
        wrong_use(f"--report must end in .html or .json, got {report}")
    try:
        found = verify(folder, outputs)
    except ValueError as error:
        wrong_use(str(error))
    if report is not None:
        text = page(found) if report.suffix == ".html" else json.dumps(summary(found), indent=1) + "\n"
        report.write_text(text, "utf-8")
    if json_:
        print_json(summary(found))
    else:
        _print(found)
    if not found.agrees:
        raise typer.Exit(FAULT)


def export_models(
    folder: Annotated[Path, typer.Argument(help="The package of vectors.")],
    models: Annotated[Path, typer.Argument(help="A new or empty folder.")],
) -> None:
    """Write each vector that ONNX's operator Attention can express as a model with a test data set."""
    try:
        told = export_onnx(folder, models)
    except (ValueError, ImportError) as error:
        wrong_use(str(error))
    left_out = {name: lines for name, lines in told.items() if any(line.startswith("left out") for line in lines)}
    print_line(f"{models}: {len(told) - len(left_out)} models, {len(left_out)} left out; {TOLD} says why")


def _print(found: Verification) -> None:
    if found.damage:
        print_line("CHANGED: the vectors are not as they were written")
        for line in found.damage:
            print_line(f"  {line}")
        return
    rows = [(f.case, f.role, f.status, f.message) for f in found.findings if f.status != "right"]
    if rows:
        print_table(("case", "array", "", "what"), rows)
    counts = summary(found)["counts"]
    worst = max((f for f in found.findings if f.status == "right"), key=lambda f: f.ratio, default=None)
    print_line(f"{'VERIFIED' if found.agrees else 'NOT VERIFIED'}: " + ", ".join(f"{n} {s}" for s, n in counts.items()))
    if worst is not None:
        print_line(f"largest error of what is right: {worst.ratio:.3g} of its bound, {worst.case} {worst.role}")


app.command("export")(reports_errors(export_vectors))
app.command("verify")(reports_errors(verify_vectors))
app.command("onnx")(reports_errors(export_models))
