"""Caches: a decode step over every layout and codec against contiguous native storage, and what a fork costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import attnkit as ak
from benchmarks.results import Result
from benchmarks.timing import compare, seconds

_HEADS, _KV_HEADS, _SIZE = 32, 8, 128
_LENGTHS = (1024, 8192, 32768)
_PAGE = 16

KINDS: dict[str, dict[str, Any]] = {
    "ring": {"layout": "ring", "max_append": 1024},
    "paged": {"layout": "paged", "page_size": _PAGE},
    "paged, two grow by turns": {"layout": "paged", "page_size": _PAGE, "batch_size": 2},
    "paged, no two pages in a row": {"layout": "paged", "page_size": _PAGE},
    "int8": {"codec": "int8"},
    "int4": {"codec": "int4"},
    "fp8": {"codec": "fp8"},
    "paged int8": {"layout": "paged", "page_size": _PAGE, "codec": "int8"},
}
_BARRED = ("ring", "paged", "paged, two grow by turns")


def decode_steps() -> Iterator[Result]:
    """Append a token and attend to it, over the same with contiguous native storage, on both backends."""
    for backend in ("numpy", "torch"):
        try:
            ak.get_backend(backend)
        except ak.BackendUnavailableError as error:
            yield Result(f"{backend}: decode step by cache", None, None, note=str(error))
            continue
        for length in _LENGTHS:
            yield from _steps(backend, length)


def _steps(backend: str, length: int) -> Iterator[Result]:
    native = _step(backend, length, {})
    for kind, fields in KINDS.items():
        fragmented = kind == "paged, no two pages in a row"
        found = compare(_step(backend, length, fields, fragmented=fragmented), native)
        name = f"{backend}: decode step, {kind} / contiguous native, H{_HEADS} K{_KV_HEADS} D{_SIZE} S{length} fp32"
        bar = 1.3 if kind in _BARRED else None
        yield Result(name, found.ratio, bar, note=f"baseline spread {found.spread:.0%}")


def _step(backend: str, length: int, fields: dict[str, Any], *, fragmented: bool = False) -> Callable[[], object]:
    """Give one decode step over ``length`` tokens, which leaves the cache as it was."""
    fields = {**fields, "window": length + 1} if fields.get("layout") == "ring" else fields
    fields = {**fields, "num_pages": 2 * length // _PAGE + 2} if fragmented else fields
    config = ak.KVCacheConfig(num_kv_heads=_KV_HEADS, head_dim=_SIZE, **fields)
    cache, make = ak.make_cache(config, backend=backend), ak.get_backend(backend).from_numpy
    if fragmented:
        cache.pool.give_back([tuple(cache.pool.take(cache.pool.free)[::2])])
    rng = np.random.default_rng(0)
    step = 1024 if config.batch_size == 1 else _PAGE
    for start in range(0, length, step):
        tokens = rng.standard_normal((2, config.batch_size, _KV_HEADS, min(step, length - start), _SIZE), np.float32)
        cache[0].append(*map(make, tokens))
    cache.select([0])
    query = make(rng.standard_normal((1, _HEADS, 1, _SIZE), np.float32))
    token = make(rng.standard_normal((1, _KV_HEADS, 1, _SIZE), np.float32))

    def run() -> None:
        cache[0].append(token, token)
        cache[0].attend(query)
        cache.drop(1)

    return run


def fork() -> Iterator[Result]:
    """Fork a sequence of 32768 tokens in pages: milliseconds, and bytes of the copies made."""
    config = ak.KVCacheConfig(num_kv_heads=_KV_HEADS, head_dim=_SIZE, layout="paged", page_size=_PAGE)
    cache = ak.make_cache(config, backend="numpy")
    token = np.ones((1, _KV_HEADS, 1024, _SIZE), np.float32)
    for _ in range(32):
        cache[0].append(token, token)
    before, times = cache.pool.used_bytes, []
    for _ in range(15):
        times.append(seconds(partial(cache.fork, 0)))
        cache.release(1)
    yield Result("fork of 32768 tokens in pages", 1000 * min(times), 1.0, unit="ms")
    tracemalloc.start()
    cache.fork(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    note = f"{peak / 2**10:.0f} KiB of page numbers; the history is {before / 2**20:.0f} MiB"
    yield Result(
        "bytes of keys and values that the fork copied", cache.pool.used_bytes - before, 0, unit="B", note=note
    )
