"""Prefill: the tiled path against torch's fused attention and against the textbook; and its memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import attnkit as ak
from benchmarks.peers import textbook_attention, torch_attention
from benchmarks.results import Result
from benchmarks.timing import compare

Array = np.ndarray[Any, Any]
THREADS = 2
CAUSAL = ak.Mask.causal()


def against_torch() -> Iterator[Result]:
    """``numpy:tiled`` over ``scaled_dot_product_attention``, float32, causal, two threads each."""
    for heads, length, size, bar, goal in (
        (8, 2048, 128, 1.7, 1.2),
        (8, 1024, 64, None, None),
        (8, 4096, 64, None, None),
    ):
        name = f"numpy:tiled / torch SDPA, B1 H{heads} T{length} D{size} causal fp32"
        arrays = draw(heads, length, size)
        try:
            peer = torch_attention(*arrays, threads=THREADS)
        except ImportError:
            yield Result(name, None, bar, goal, note="torch is not installed: pip install 'attnkit[bench]'")
            continue
        with threadpool_limits(THREADS, user_api="blas"):
            found = compare(lambda arrays=arrays: tiled(arrays), peer)
        yield Result(name, found.ratio, bar, goal, note=f"baseline spread {found.spread:.0%}, round {found.rounds}")


def against_textbook() -> Iterator[Result]:
    """``numpy:tiled`` over the textbook formula with its full T x T scores in float32."""
    for size in (64, 128):
        arrays = draw(8, 2048, size)
        with threadpool_limits(THREADS, user_api="blas"):
            found = compare(
                lambda arrays=arrays: tiled(arrays), lambda arrays=arrays: textbook_attention(*arrays), turns=7
            )
        name = f"numpy:tiled / textbook, B1 H8 T2048 D{size} causal fp32"
        note = f"{1 / found.ratio:.1f} times faster; baseline spread {found.spread:.0%}"
        yield Result(name, found.ratio, 1 / 3, 1 / 6, note=note)


def memory() -> Iterator[Result]:
    """Peak memory of one long call, beyond its output."""
    for length in (16384, 32768):
        arrays = draw(1, length, 64)
        tracemalloc.start()
        output = tiled(arrays)
        peak = tracemalloc.get_traced_memory()[1] - output.nbytes
        tracemalloc.stop()
        yield Result(f"memory of numpy:tiled beyond its output, H1 T{length} D64", peak / 2**20, 64, None, "MiB")


def draw(heads: int, length: int, size: int) -> list[Array]:
    """Give query, key and value ``[1, H, T, D]``."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, heads, length, size), dtype=np.float32) for _ in range(3)]


def tiled(arrays: list[Array]) -> Array:
    """Run the tiled path."""
    output: Array = ak.attention(*arrays, mask=CAUSAL, backend="numpy:tiled")
    return output
