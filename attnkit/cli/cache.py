"""``attnkit cache plan``: what a KV cache costs, before it is made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from attnkit.cache.config import KVCacheConfig
from attnkit.cli.output import print_json, print_line
from attnkit.config import AttentionConfig, read_json
from attnkit.errors import ShapeError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NEEDED = ("num_kv_heads", "head_dim")
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def plan(
    config: Annotated[Path | None, typer.Option(help="A Hugging Face config.json, or the directory of one.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key/value heads, K.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, help="Key head size, D.")] = None,
    value_dim: Annotated[int | None, typer.Option(min=1, help="Value head size, E; D by default.")] = None,
    dtype: Annotated[str, typer.Option(help="Element type of keys and values as they are read.")] = "float32",
    codec: Annotated[str | None, typer.Option(help="native, int8, int4, fp8, or with a block: int4/32.")] = None,
    key_codec: Annotated[str | None, typer.Option(help="The codec of the keys, if it is another.")] = None,
    value_codec: Annotated[str | None, typer.Option(help="The codec of the values, if it is another.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    layout: Annotated[str, typer.Option(help="contiguous, ring or paged.")] = "contiguous",
    max_length: Annotated[int | None, typer.Option(min=1, help="Tokens to allocate at once; default: grow.")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Ring: tokens that a query sees, itself included.")] = None,
    max_append: Annotated[int | None, typer.Option(min=1, help="Ring: most tokens of one append.")] = None,
    pinned: Annotated[int | None, typer.Option(min=0, help="Ring: first tokens that are kept for ever.")] = None,
    page_size: Annotated[int | None, typer.Option(min=1, help="Paged: tokens in a page.")] = None,
    num_pages: Annotated[int | None, typer.Option(min=1, help="Paged: pages in the pool; default: grow.")] = None,
    context: Annotated[int | None, typer.Option(min=0, help="Tell the bytes for so many tokens of each.")] = None,
    memory: Annotated[str | None, typer.Option(help="Tell the longest context for this much, such as 8GiB.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what a KV cache costs: bytes per token, bytes for a context, and the longest context for a memory.

    Sizes come from --config, from flags, or from both: flags win.
    """
    flags = {
        "num_layers": layers,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "value_dim": value_dim,
        "dtype": dtype,
        "codec": codec,
        "key_codec": key_codec,
        "value_codec": value_codec,
        "batch_size": batch,
        "layout": layout,
        "max_length": max_length,
        "window": window,
        "max_append": max_append,
        "pinned": pinned,
        "page_size": page_size,
        "num_pages": num_pages,
    }
    sizes = _sizes_of(config) | {name: value for name, value in flags.items() if value is not None}
    missing = [f"--{name.removeprefix('num_').replace('_', '-')}" for name in _NEEDED if name not in sizes]
    if missing:
        raise ShapeError(f"{' and '.join(missing)} must be given, or --config")
    cache = KVCacheConfig(**sizes)
    costs = _costs(cache, context, None if memory is None else parse_bytes(memory))
    if json:
        print_json({"cache": cache.model_dump(mode="json", exclude_none=True), **costs})
        return
    print_line(_title(cache))
    for line in _lines(cache, costs):
        print_line(line)


def parse_bytes(text: str) -> int:
    """Read an amount of memory such as ``8GiB``, ``500 MB`` or ``1024``.

    Raises
    ------
    ShapeError
        If the text is not of that form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ShapeError(f"--memory must be an amount such as 8GiB, 500MB or 1024, got {text!r}")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def format_bytes(amount: int) -> str:
    """Write an amount of memory for people, with the exact number of bytes."""
    size, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{amount} B" if unit == "B" else f"{size:.4g} {unit} ({amount} B)"


def _sizes_of(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        source = read_json(config)
        attention = AttentionConfig.from_hf(source)
    except OSError as error:
        raise ShapeError(f"--config {config}: {error.strerror or error}") from error
    except ValueError as error:
        raise ShapeError(f"--config {config}: {error}") from error
    sizes = {"num_kv_heads": attention.num_kv_heads, "head_dim": attention.head_dim, "value_dim": attention.value_dim}
    layers = next((source[key] for key in _LAYER_KEYS if key in source), None)
    return sizes if layers is None else sizes | {"num_layers": layers}


def _costs(cache: KVCacheConfig, context: int | None, memory: int | None) -> dict[str, int]:
    costs = {"bytes_per_token": cache.bytes_per_token}
    if context is not None:
        if cache.most_tokens is not None and context > cache.most_tokens:
            raise ShapeError(f"--context must be at most the {cache.most_tokens} tokens that fit, got {context}")
        costs |= {"context": context, "bytes": cache.bytes_for(context)}
    if memory is not None:
        costs |= {"memory": memory, "longest_context": cache.longest_for(memory)}
    return costs


def _title(cache: KVCacheConfig) -> str:
    head = str(cache.head_dim) if cache.value_dim == cache.head_dim else f"{cache.head_dim}/{cache.value_dim}"
    own = {name: getattr(cache, name) for name in ("window", "max_append", "pinned", "page_size", "num_pages")}
    layout = ", ".join(f"{name} {value}" for name, value in own.items() if value is not None)
    codecs = [str(cache.key_codec), str(cache.value_codec)]
    stored = "" if codecs == ["native", "native"] else f" stored as {' and '.join(dict.fromkeys(codecs))}"
    return (
        f"{cache.layout} cache{f' ({layout})' if layout else ''} of {cache.dtype}{stored}: batch {cache.batch_size}, "
        f"{cache.num_layers} layers, {cache.num_kv_heads} kv heads, head size {head}"
    )


def _lines(cache: KVCacheConfig, costs: dict[str, int]) -> list[str]:
    lines = [f"one token of one sequence: {format_bytes(costs['bytes_per_token'])}"]
    if "bytes" in costs:
        lines.append(f"{costs['context']} tokens of each: {format_bytes(costs['bytes'])}")
    if "longest_context" in costs:
        held = f"{costs['longest_context']} tokens of each"
        fits_ring = cache.layout == "ring" and costs["longest_context"]
        lines.append(f"{format_bytes(costs['memory'])} hold {'a ring, for any context' if fits_ring else held}")
    return lines
