"""``attnkit generate``: a real model continues prompts, on any backend and through any cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attnkit.cli.caching import (
    CacheDTypeOption,
    LayoutOption,
    PageSizeOption,
    PinnedOption,
    WindowOption,
    cache_fields,
    check_fit,
    described,
)
from attnkit.cli.loading import BackendOption, DTypeOption, ModelOption, load, paths_taken, wrong_use
from attnkit.tracing import trace

if TYPE_CHECKING:
    from attnkit.models import BatchStats, GenerationStats, Llama, Tokenizer


class _Wanted(NamedTuple):
    """What is asked of every text."""

    max_tokens: int
    temperature: float
    seed: int


def generate(
    prompt: Annotated[
        list[str], typer.Argument(help="Text to continue; with --chat, the message to answer. Several run together.")
    ],
    backend: BackendOption = None,
    dtype: DTypeOption = "float32",
    model: ModelOption = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate, at least 1.")] = 128,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    temperature: Annotated[float, typer.Option(help="At least 0; 0 takes the most probable token each time.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the draws at a temperature above 0; at least 0.")] = 0,
    cache: LayoutOption = "contiguous",
    page_size: PageSizeOption = None,
    cache_dtype: CacheDTypeOption = None,
    window: WindowOption = None,
    pinned: PinnedOption = None,
) -> None:
    """Generate text to standard output as it comes; what ran and how fast goes to standard error.

    Several prompts are generated together, and each is printed with its text when all before it are done.
    """
    wanted = _Wanted(max_tokens, temperature, seed)
    _check(prompt, wanted)
    fields = cache_fields(cache, page_size, cache_dtype, window, pinned)
    llama, tokenizer = load(model, backend, dtype)
    check_fit(fields, llama.config)
    ids = [tokenizer.chat(text) if chat else tokenizer.encode(text) for text in prompt]
    with trace() as calls:
        if len(ids) == 1:
            told = _one(llama, tokenizer, ids[0], fields, wanted)
        else:
            told = _several(llama, tokenizer, prompt, ids, fields, wanted)
    typer.echo(f"{', '.join(paths_taken(calls))}: {told}", err=True)


def _one(llama: Llama, tokenizer: Tokenizer, ids: list[int], fields: dict[str, Any], wanted: _Wanted) -> str:
    """Print a text as it comes, and tell what it took."""
    from attnkit import models

    length = min(len(ids) + wanted.max_tokens, llama.config.max_positions)
    cache = llama.make_cache(max_length=None if fields["layout"] == "ring" else length, **fields)
    generation = models.generate(llama, tokenizer, ids, cache=cache, **wanted._asdict())
    for piece in tokenizer.stream(generation):
        typer.echo(piece, nl=False)
    typer.echo()
    return f"{_summary(generation.stats)}, {described(generation.cache)}"


def _several(
    llama: Llama,
    tokenizer: Tokenizer,
    prompts: list[str],
    ids: list[list[int]],
    fields: dict[str, Any],
    wanted: _Wanted,
) -> str:
    """Print each prompt and its text, in order, and tell what they took."""
    from attnkit import models

    cache = llama.make_cache(batch_size=0, **fields)
    generation = models.generate_batch(llama, tokenizer, ids, cache=cache, **wanted._asdict())
    done: dict[int, list[int]] = {}
    printed = 0
    for number, new in generation:
        done[number] = new
        while printed in done:
            typer.echo(f"{prompts[printed]}\n{tokenizer.decode(done[printed])}\n")
            printed += 1
    return f"{_batch_summary(generation.stats)}, {described(cache)}"


def _check(prompts: list[str], wanted: _Wanted) -> None:
    for prompt in prompts:
        _check_prompt(prompt)
    if wanted.max_tokens < 1:
        wrong_use(f"--max-tokens must be >= 1, got {wanted.max_tokens}")
    if not (math.isfinite(wanted.temperature) and wanted.temperature >= 0):
        wrong_use(f"--temperature must be finite and >= 0, got {wanted.temperature}")
    if wanted.seed < 0:
        wrong_use(f"--seed must be >= 0, got {wanted.seed}")


def _check_prompt(prompt: str) -> None:
    if not prompt:
        wrong_use("PROMPT is empty; give at least one character")
    if not prompt.isprintable() and any("\ud800" <= character <= "\udfff" for character in prompt):
        wrong_use("PROMPT must be UTF-8 text, got bytes that are not")


def _summary(stats: GenerationStats) -> str:
    decode = (
        f"{stats.decode_tokens} decode steps at {stats.decode_rate:.1f} tokens/s"
        if stats.decode_tokens
        else "no decode"
    )
    return f"{stats.prompt_tokens} prompt tokens at {stats.prefill_rate:.1f} tokens/s, {decode}"


def _batch_summary(stats: BatchStats) -> str:
    return (
        f"{stats.prompt_tokens} prompt tokens and {stats.new_tokens} new ones in {stats.steps} steps "
        f"at {stats.rate:.1f} new tokens/s"
    )
