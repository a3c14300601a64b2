"""``attnkit generate``: a real model continues a prompt, on any backend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from attnkit.cli.loading import BackendOption, DTypeOption, ModelOption, load, paths_taken, wrong_use
from attnkit.tracing import trace

if TYPE_CHECKING:
    from attnkit.models import GenerationStats


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; with --chat, the message to answer.")],
    backend: BackendOption = None,
    dtype: DTypeOption = "float32",
    model: ModelOption = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate, at least 1.")] = 128,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    temperature: Annotated[float, typer.Option(help="At least 0; 0 takes the most probable token each time.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the draws at a temperature above 0; at least 0.")] = 0,
) -> None:
    """Generate text to standard output as it comes; what ran and how fast goes to standard error."""
    _check(prompt, max_tokens, temperature, seed)
    llama, tokenizer = load(model, backend, dtype)
    from attnkit import models

    ids = tokenizer.chat(prompt) if chat else tokenizer.encode(prompt)
    with trace() as calls:
        generation = models.generate(llama, tokenizer, ids, max_tokens=max_tokens, temperature=temperature, seed=seed)
        for piece in tokenizer.stream(generation):
            typer.echo(piece, nl=False)
    typer.echo()
    typer.echo(f"{', '.join(paths_taken(calls))}: {_summary(generation.stats)}", err=True)


def _check(prompt: str, max_tokens: int, temperature: float, seed: int) -> None:
    if not prompt:
        wrong_use("PROMPT is empty; give at least one character")
    if not prompt.isprintable() and any("\ud800" <= character <= "\udfff" for character in prompt):
        wrong_use("PROMPT must be UTF-8 text, got bytes that are not")
    if max_tokens < 1:
        wrong_use(f"--max-tokens must be >= 1, got {max_tokens}")
    if not (math.isfinite(temperature) and temperature >= 0):
        wrong_use(f"--temperature must be finite and >= 0, got {temperature}")
    if seed < 0:
        wrong_use(f"--seed must be >= 0, got {seed}")


def _summary(stats: GenerationStats) -> str:
    decode = (
        f"{stats.decode_tokens} decode steps at {stats.decode_rate:.1f} tokens/s"
        if stats.decode_tokens
        else "no decode"
    )
    return (
        f"{stats.prompt_tokens} prompt tokens at {stats.prefill_rate:.1f} tokens/s, {decode}, "
        f"cache {stats.cache_bytes:,} bytes"
    )
