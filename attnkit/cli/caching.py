"""The options of the KV cache of commands that run a model, and what they mean to ``KVCacheConfig``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from attnkit.arrays import DTYPES
from attnkit.cache.config import LAYOUTS
from attnkit.cli.loading import wrong_use
from attnkit.codec import Codec

if TYPE_CHECKING:
    from attnkit.cache.base import KVCache
    from attnkit.models import LlamaConfig

LayoutOption = Annotated[str, typer.Option("--cache", help=f"Layout of the KV cache: {', '.join(LAYOUTS)}.")]
PageSizeOption = Annotated[int | None, typer.Option(help="Tokens in a page, with --cache paged; 16 by default.")]
CacheDTypeOption = Annotated[
    str | None,
    typer.Option(
        help="How keys and values are stored: an element type, or int8, int4, fp8, or such as int4/32, where 32 "
        "features share a scale; default: --dtype."
    ),
]
WindowOption = Annotated[int | None, typer.Option(help="Tokens that each one sees, with --cache ring.")]
PinnedOption = Annotated[
    int | None, typer.Option(help="First tokens that are kept for ever, with --cache ring; 0 by default.")
]
_OWNERS = {"page_size": "paged", "window": "ring", "pinned": "ring"}


def cache_fields(
    layout: str, page_size: int | None, cache_dtype: str | None, window: int | None, pinned: int | None
) -> dict[str, Any]:
    """Give the fields of ``KVCacheConfig`` that options mean; those that do not go together are wrong use."""
    if layout not in LAYOUTS:
        wrong_use(f"--cache must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    sizes = {"page_size": page_size, "window": window, "pinned": pinned}
    given = {name: size for name, size in sizes.items() if size is not None}
    for name, size in given.items():
        _check_size(name, size, layout)
    if layout == "ring" and window is None:
        wrong_use("--cache ring needs --window, the number of tokens that each one sees, itself included")
    return {"layout": layout, **given, **_storage(cache_dtype)}


def check_fit(fields: dict[str, Any], model: LlamaConfig) -> None:
    """Make sure that sizes are not beyond a model's context, and that the blocks of a codec divide its heads."""
    for name in _OWNERS:
        if fields.get(name, 0) > model.max_positions:
            wrong_use(f"{_option(name)} must be at most the model's context, {model.max_positions}, got {fields[name]}")
    codec = Codec.model_validate(fields.get("codec", "native"))
    if codec.block is not None and model.head_dim % codec.block:
        wrong_use(
            f"--cache-dtype {codec}: the model's heads have {model.head_dim} features; give a block that divides them"
        )


def described(cache: KVCache) -> str:
    """Tell the layout, the storage and the bytes of a cache."""
    return f"{cache.config.layout} {stored_as(cache)} cache {cache.nbytes:,} bytes"


def stored_as(cache: KVCache) -> str:
    """Give the element type or the codec of a cache, as ``--cache-dtype`` takes it."""
    codec = cache.config.key_codec
    return cache.config.dtype if codec.kind == "native" else str(codec)


def _check_size(name: str, size: int, layout: str) -> None:
    option, least = _option(name), 0 if name == "pinned" else 1
    if layout != _OWNERS[name]:
        wrong_use(f"{option} goes with --cache {_OWNERS[name]}, got --cache {layout}")
    if size < least:
        wrong_use(f"{option} must be >= {least}, got {size}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _storage(cache_dtype: str | None) -> dict[str, Any]:
    if cache_dtype is None:
        return {}
    if cache_dtype in DTYPES:
        return {"dtype": cache_dtype}
    try:
        codec = Codec.model_validate(cache_dtype)
    except ValidationError:
        wrong_use(
            f"--cache-dtype must be one of {', '.join(DTYPES)}, int8, int4, fp8, or one of these three with a block, "
            f"such as int4/32, got {cache_dtype!r}"
        )
    return {"codec": codec}
