"""``attnkit score``: how well a real model predicts a text, which is one number for a whole backend."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli.loading import BackendOption, DTypeOption, ModelOption, load, paths_taken, wrong_use
from attnkit.cli.output import print_json
from attnkit.tracing import trace


def score(
    file: Annotated[Path, typer.Argument(help="UTF-8 text.")],
    backend: BackendOption = None,
    dtype: DTypeOption = "float32",
    model: ModelOption = None,
    chunk: Annotated[
        int | None,
        typer.Option(help="Feed so many tokens (>= 1) at a time through the KV cache; default: all at once."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the mean negative log-likelihood of a token, in nats, and the perplexity."""
    if chunk is not None and chunk < 1:
        wrong_use(f"--chunk must be >= 1, got {chunk}")
    text = _text(file)
    llama, tokenizer = load(model, backend, dtype)
    from attnkit import models

    ids = tokenizer.encode(text)
    _check_length(file, len(ids), llama.config.max_positions)
    start = time.perf_counter()
    with trace() as calls:
        found = models.score(llama, ids, chunk=chunk)
    seconds = time.perf_counter() - start
    if json:
        record = {"nll": found.nll, "perplexity": found.perplexity, "tokens": found.tokens, "chunk": chunk}
        print_json(record | {"paths": paths_taken(calls), "seconds": seconds})
        return
    typer.echo(f"nll {found.nll:.4f} nats, perplexity {found.perplexity:.2f}, {found.tokens} tokens predicted")
    typer.echo(f"{', '.join(paths_taken(calls))}: {found.tokens / seconds:.1f} tokens/s", err=True)


def _text(file: Path) -> str:
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        wrong_use(f"FILE {file}: {error.strerror or error}")
    except UnicodeDecodeError as error:
        wrong_use(f"FILE {file} is not UTF-8: {error.reason} at byte {error.start}")
    if not text:
        wrong_use(f"FILE {file} is empty")
    return text


def _check_length(file: Path, tokens: int, context: int) -> None:
    if not 2 <= tokens <= context:
        wrong_use(f"FILE {file} has {tokens} tokens; from 2 to {context} can be scored")
