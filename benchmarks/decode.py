"""Decode: a step over a long cache against reading its bytes once, and a real model against the textbook loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import attnkit as ak
from benchmarks.results import Result
from benchmarks.timing import compare, seconds

Array = np.ndarray[Any, Any]
_KV_HEADS, _HEADS, _SIZE = 8, 32, 128


def against_reading() -> Iterator[Result]:
    """One decode step over one matrix-vector product that reads as many bytes as the cache holds."""
    for length in (2048, 8192, 32768):
        layer, query = _filled(length)
        stored = np.ones((2 * length * _KV_HEADS, _SIZE), np.float32)
        vector = np.ones(_SIZE, np.float32)
        found = compare(partial(layer.attend, query), partial(np.matmul, stored, vector))
        name = f"decode step / reading its cache once, H{_HEADS} K{_KV_HEADS} D{_SIZE} S{length} fp32"
        yield Result(name, found.ratio, None, 1.1, note=f"baseline spread {found.spread:.0%}")


def grows_with_the_read() -> Iterator[Result]:
    """A step over a history over one over a quarter of it, divided by four: 1 where nothing but the read grows."""
    for length in (8192, 32768):
        (long, query), (short, _) = _filled(length), _filled(length // 4)
        found = compare(partial(long.attend, query), partial(short.attend, query))
        name = f"decode step at S{length} / 4 x at S{length // 4}, H{_HEADS} K{_KV_HEADS} D{_SIZE} fp32"
        yield Result(name, found.ratio / 4, 1.25, 1.0, note=f"baseline spread {found.spread:.0%}")


def append_is_flat() -> Iterator[Result]:
    """Appending one token to a long history over appending it to a short one."""
    token = np.ones((1, _KV_HEADS, 1, _SIZE), np.float32)
    short, long = (_filled(length)[0] for length in (64, 32768))
    ratios = [
        seconds(lambda: long.append(token, token), calls=200) / seconds(lambda: short.append(token, token), calls=200)
        for _ in range(15)
    ]
    yield Result("append to 32768 tokens / append to 64", median(ratios), 1.5, 1.0)


def real_model() -> Iterator[Result]:
    """A decode step of SmolLM2 through attnkit over one of the textbook loop that concatenates its cache anew."""
    from attnkit.models import GGUFFile, fetch_default_model, gguf_weights, load_model, read_gguf_config
    from benchmarks.peers import ConcatenatingDecoder

    model, tokenizer = load_model(backend="numpy")
    file = GGUFFile(fetch_default_model())
    config = read_gguf_config(file)
    peer = ConcatenatingDecoder(config, gguf_weights(file, config))
    prompt = tokenizer.encode("Once upon a time, in a small village by the sea, there was a wise old wizard. " * 8)
    cache = model.make_cache()
    model.forward(prompt, cache)
    peer.forward(prompt)
    found = compare(lambda: model.forward([42], cache), lambda: peer.forward([42]), turns=41)
    name = f"SmolLM2 decode step / textbook NumPy loop, after {len(prompt)} tokens"
    yield Result(name, found.ratio, 1.0, None, note=f"{1 / found.candidate:.0f} tokens/s here, now")


def _filled(length: int) -> tuple[ak.CacheLayer, Array]:
    rng = np.random.default_rng(0)
    config = ak.KVCacheConfig(num_kv_heads=_KV_HEADS, head_dim=_SIZE, max_length=length + 4096)
    layer = ak.make_cache(config, backend="numpy")[0]
    key, value = rng.standard_normal((2, 1, _KV_HEADS, length, _SIZE), dtype=np.float32)
    layer.append(key, value)
    return layer, rng.standard_normal((1, _HEADS, 1, _SIZE), dtype=np.float32)
