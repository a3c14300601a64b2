"""Caches under a real model: tokens a second with every layout and codec, and with the caches of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attnkit as ak
from attnkit.models import (
    GGUFFile,
    Llama,
    fetch_default_model,
    gguf_tokenizer,
    gguf_weights,
    read_gguf_config,
)
from benchmarks.hf_generate import THREADS, hf_model
from benchmarks.results import Result
from benchmarks.timing import compare

_PROMPT = "Once upon a time, in a small village by the sea, there was a wise old wizard. " * 16
_KINDS: dict[str, dict[str, Any]] = {
    "contiguous, fixed": {"max_length": 1024},
    "ring": {"layout": "ring", "window": 512, "max_append": 512},
    "paged": {"layout": "paged", "page_size": 16},
    "contiguous int8": {"codec": "int8"},
    "paged int8": {"layout": "paged", "page_size": 16, "codec": "int8"},
    "contiguous int4/32": {"codec": "int4/32"},
}


def decode() -> Iterator[Result]:
    """A decode step of SmolLM2 on torch, by cache, over one with a growing contiguous cache; in turns, in one run."""
    try:
        import torch
        import transformers  # noqa: F401  # asked for before the weights are read
    except ImportError as error:
        yield Result("SmolLM2 decode step by cache", None, None, note=f"{error.name} is absent")
        return
    torch.set_num_threads(THREADS)
    file = GGUFFile(fetch_default_model())
    config = read_gguf_config(file)
    weights = gguf_weights(file, config)
    prompt = gguf_tokenizer(file.metadata, origin=str(file.path)).encode(_PROMPT)
    model = Llama(config, weights, backend="torch", dtype="float32")
    native = _attnkit_step(model, prompt, {})
    sides = {f"attnkit {kind}": partial(_attnkit_step, model, prompt, fields) for kind, fields in _KINDS.items()}
    theirs = hf_model(config, weights, "float32")
    sides |= {f"transformers {kind}": partial(_hf_step, theirs, prompt, kind) for kind in ("dynamic", "static")}
    for name, make in sides.items():
        found = compare(make(), native, turns=21)
        note = f"{1 / found.candidate:.1f} and {1 / found.baseline:.1f} tokens/s now, spread {found.spread:.0%}"
        yield Result(
            f"SmolLM2 decode step after {len(prompt)} tokens, {name} / contiguous", found.ratio, None, note=note
        )


def _attnkit_step(model: Llama, prompt: list[int], fields: dict[str, Any]) -> Callable[[], object]:
    sizes = {"num_layers": model.config.num_layers, "num_kv_heads": model.config.num_kv_heads}
    config = ak.KVCacheConfig(**sizes, head_dim=model.config.head_dim, dtype=model.dtype, **fields)
    cache = ak.make_cache(config, backend=model.choice)
    model.forward(prompt, cache)

    def run() -> None:
        model.forward([42], cache)
        cache.drop(1)

    return run


def _hf_step(model: Any, prompt: list[int], kind: str) -> Callable[[], object]:
    import torch
    from transformers import DynamicCache, StaticCache

    cache = DynamicCache() if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=1024)
    token = torch.tensor([[42]])
    with torch.inference_mode():
        model(torch.tensor([prompt]), past_key_values=cache)

    def run() -> None:
        with torch.inference_mode():
            model(token, past_key_values=cache)
            cache.crop(-1)

    return run
