"""``attnkit conform issue`` and ``judge``: the suite for an implementation that no Python reaches."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

import attnkit as ak
from attnkit.cli.output import FAULT, print_json, print_line, print_table
from attnkit_conformance.blind.issuing import Terms
from attnkit_conformance.blind.issuing import issue as issue_questions
from attnkit_conformance.blind.judging import Judgement
from attnkit_conformance.blind.judging import judge as judge_answers
from attnkit_conformance.cli.options import JsonOption, SeedOption, wrong_use
from attnkit_conformance.reports.declared import capabilities_of
from attnkit_conformance.results import GOOD


def issue(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    capabilities: Annotated[Path, typer.Option(help="What is declared: JSON or TOML of the fields of Capabilities.")],
    level: Annotated[str, typer.Option(help="Up to this level: L0 to L3.")] = "L1",
    seed: SeedOption = 0,
    max_macs: Annotated[float, typer.Option(min=1, help="Multiplications that one call may need.")] = 1e7,
    sample: Annotated[float, typer.Option(help="Only this share of the items, chosen by the seed: > 0, up to 1.")] = 1,
) -> None:
    """Write the calls that the checks of a level make, without what is right, for a program elsewhere to answer."""
    if not 0 < sample <= 1:
        wrong_use(f"--sample must be > 0 and up to 1, got {sample:g}")
    terms = Terms(_declared(capabilities), _level(level), seed, max_macs, sample)
    try:
        covered, total = issue_questions(folder, terms)
    except ValueError as error:
        wrong_use(str(error))
    print_line(f"{folder}: {covered} of {total} items as questions; answers go to OUT/CASE/out/, see its README.md")


def judge(
    folder: Annotated[Path, typer.Argument(help="The questions.")],
    answers: Annotated[Path, typer.Argument(help="The answers: CASE/out/output.bin, lse.bin or refused.txt.")],
    json_: JsonOption = False,
) -> None:
    """Judge answers to questions by the checks that asked them; exits with 1 where one is wrong."""
    try:
        found = judge_answers(folder, answers)
    except ValueError as error:
        wrong_use(str(error))
    if json_:
        results = [result.model_dump(mode="json") for result in found.results]
        print_json({"verdict": found.verdict, "results": results})
    else:
        _print(found)
    if not found.conforms:
        raise typer.Exit(FAULT)


def _print(found: Judgement) -> None:
    print_line(found.verdict)
    wrong = [result for result in found.results if result.status not in GOOD and result.status != "NOT_RUN"]
    if wrong:
        print_table(("item", "", "what"), [(one.id, one.status, one.message.splitlines()[0]) for one in wrong])
    skipped = Counter(result.outcome for result in found.results if result.status == "NOT_RUN")
    for why, count in skipped.most_common():
        print_line(f"not covered: {count} items, {why}")


def _declared(path: Path) -> ak.Capabilities:
    try:
        text = path.read_text("utf-8")
        plain: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        return capabilities_of(plain)
    except (ValueError, TypeError, ak.AttnkitError) as error:
        wrong_use(f"--capabilities {path}: must be JSON or TOML of the fields of Capabilities: {error}")


def _level(text: str) -> int:
    number = text.removeprefix("L")
    if number not in ("0", "1", "2", "3"):
        wrong_use(f"--level must be L0, L1, L2 or L3, got {text}")
    return int(number)
