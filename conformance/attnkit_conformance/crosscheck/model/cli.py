"""``attnkit crosscheck A B --model``: a real model on two backends, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from attnkit.cli.loading import load
from attnkit.cli.output import FAULT, console, print_line, print_table
from attnkit_conformance.cli.options import wrong_use
from attnkit_conformance.crosscheck.judging import NAMES
from attnkit_conformance.crosscheck.model.comparing import compare
from attnkit_conformance.crosscheck.model.page import page
from attnkit_conformance.crosscheck.model.report import ModelReport
from attnkit_conformance.harness.targets import TargetError, open_target

if TYPE_CHECKING:
    from attnkit.models import Llama, Tokenizer

_SENTENCE = (
    "Attention is a weighted mean: each query looks at the keys before it, and takes from their values as much as the "
    "softmax of their products says. Whatever computes it, the numbers must be the same."
)
_USUAL = "smollm2"
_COLUMNS = ("layer", "|A-B| / (τA+τB)", "A / τA", "B / τB", "drift of free runs")


def layer_by_layer(
    a: str, b: str, model: str, text: Path | None, tokens: int, dtype: str, report: Path | None, *, json: bool
) -> None:
    """Compare two backends in every layer of a model; exits with 1 where one is wrong."""
    path = None if model == _USUAL else Path(model)
    (one, tokenizer), (other, _) = (_loaded(path, target, dtype) for target in (a, b))
    try:
        words = _SENTENCE if text is None else text.read_text("utf-8")
    except UnicodeDecodeError as error:
        wrong_use(f"--text: {text} is not UTF-8: {error}")
    ids = tokenizer.encode(words)[:tokens]
    if len(ids) < 2:
        wrong_use(f"--text must have at least 2 tokens, got {len(ids)}")
    found = compare(one, other, ids, model=model)
    told = found.model_dump_json(indent=2)
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(told + "\n" if report.suffix == ".json" else page(found), "utf-8")
    if json:
        typer.echo(told)
    else:
        _print(found)
    if not found.agree:
        raise typer.Exit(FAULT)


def _loaded(path: Path | None, target: str, dtype: str) -> tuple[Llama, Tokenizer]:
    try:
        choice = open_target(target).choice
    except TargetError as error:
        wrong_use(str(error))
    return load(path, choice, dtype)


def _print(found: ModelReport) -> None:
    verdict = "AGREE" if found.agree else "DIFFER"
    title = f"{verdict}: A = {found.sides['A']}, B = {found.sides['B']}, {found.model}, {found.tokens} tokens"
    console().print(Text(title, style=f"bold {'green' if found.agree else 'red'}"))
    print_table(
        _COLUMNS,
        (
            (str(line.layer), *(f"{n:.3g}" for n in (line.apart, line.error["A"], line.error["B"], line.drift)))
            for line in found.layers
        ),
    )
    for name in NAMES:
        if name in found.first:
            at = found.first[name]
            print_line(f"wrong: {found.sides[name]}: first in layer {at.layer}, head {at.head}, token {at.token}")
    if found.parted is not None:
        at = found.parted
        print_line(f"free runs part in layer {at.layer}, at token {at.token}, head {at.head}")
    effect = found.effect
    print_line(
        f"logits: largest difference {effect.largest:.3g}, divergence {effect.divergence:.3g} nats, {effect.flips} of "
        f"{found.tokens} next tokens differ; nll {effect.nll['A']:.4f} and {effect.nll['B']:.4f} nats"
    )
