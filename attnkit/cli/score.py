"""``attnkit score``: how well a real model predicts a text, which is one number for a whole backend."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    stored_as,
)
from attnkit.cli.loading import BackendOption, DTypeOption, ModelOption, load, paths_taken, wrong_use
from attnkit.cli.output import print_json
from attnkit.tracing import trace

if TYPE_CHECKING:
    from attnkit.cache.base import KVCache
    from attnkit.models import Llama


def score(
    file: Annotated[Path, typer.Argument(help="UTF-8 text.")],
    backend: BackendOption = None,
    dtype: DTypeOption = "float32",
    model: ModelOption = None,
    chunk: Annotated[
        int | None,
        typer.Option(help="Feed so many tokens (>= 1) at a time through the KV cache; default: all at once."),
    ] = None,
    cache: LayoutOption = "contiguous",
    page_size: PageSizeOption = None,
    cache_dtype: CacheDTypeOption = None,
    window: WindowOption = None,
    pinned: PinnedOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the mean negative log-likelihood of a token, in nats, and the perplexity.

    With an option of the cache, or --chunk, the text goes through a KV cache, so that the score tells what that costs.
    """
    if chunk is not None and chunk < 1:
        wrong_use(f"--chunk must be >= 1, got {chunk}")
    fields = cache_fields(cache, page_size, cache_dtype, window, pinned)
    text = _text(file)
    llama, tokenizer = load(model, backend, dtype)
    check_fit(fields, llama.config)
    from attnkit import models

    ids = tokenizer.encode(text)
    _check_length(file, len(ids), llama.config.max_positions)
    through = None if fields == {"layout": "contiguous"} and chunk is None else _cache(llama, fields, len(ids), chunk)
    start = time.perf_counter()
    with trace() as calls:
        found = models.score(llama, ids, chunk=chunk, cache=through)
    seconds = time.perf_counter() - start
    if json:
        record = {"nll": found.nll, "perplexity": found.perplexity, "tokens": found.tokens, "chunk": chunk}
        held = through and {"layout": through.config.layout, "stored": stored_as(through), "bytes": through.nbytes}
        print_json(record | {"cache": held, "paths": paths_taken(calls), "seconds": seconds})
        return
    typer.echo(f"nll {found.nll:.4f} nats, perplexity {found.perplexity:.2f}, {found.tokens} tokens predicted")
    told = "" if through is None else f", {described(through)}"
    typer.echo(f"{', '.join(paths_taken(calls))}: {found.tokens / seconds:.1f} tokens/s{told}", err=True)


def _cache(llama: Llama, fields: dict[str, Any], tokens: int, chunk: int | None) -> KVCache:
    """Make a cache for all tokens, and for as many at a time as are asked for."""
    if fields["layout"] != "ring":
        return llama.make_cache(max_length=tokens, **fields)
    return llama.make_cache(max_append=chunk, **fields)


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
