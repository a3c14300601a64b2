"""Ratios: prefill against torch's own kernels on the same GPU, decoding against the bandwidth of a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import attnkit as ak
from attnkit.conversion import convert
from benchmarks.gpu.lines import Line
from benchmarks.gpu.place import Array, Place


class Prefill(NamedTuple):
    """One shape: ``[B, H, T, D]`` queries, ``K`` key/value heads, and a mask."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    size: int
    causal: bool
    window: int | None = None

    @property
    def operations(self) -> float:
        """Multiplications and additions of both products, of what the mask shows."""
        seen = self.length * (min(self.window or self.length, self.length))
        shown = seen if self.window else seen / (2 if self.causal else 1)
        return 4.0 * self.batch * self.heads * self.size * shown

    @property
    def mask(self) -> ak.Mask | None:
        """The mask."""
        if self.window:
            return ak.Mask.causal() & ak.Mask.window(self.window)
        return ak.Mask.causal() if self.causal else None


def _prefills(tiny: bool) -> Iterator[Prefill]:
    if tiny:
        yield Prefill(1, 2, 1, 32, 64, True)
        yield Prefill(1, 2, 2, 32, 64, False, 8)
        return
    for size, length, causal in product((64, 128), (1024, 4096, 16384), (True, False)):
        heads = 2048 // size
        yield Prefill(max(1, 16384 // length), heads, heads, length, size, causal)
    yield Prefill(4, 32, 8, 4096, 128, True)
    yield Prefill(1, 16, 16, 16384, 128, True, 1024)


def prefill(place: Place) -> Iterator[Line]:
    """Time our kernels against each of torch's that takes the call."""
    try:
        import torch
    except ImportError:
        yield Line("prefill", "torch", "not run", {}, "torch is absent")
        return
    for shape, dtype in product(_prefills(place.tiny), ("bfloat16",) if place.tiny else ("bfloat16", "float16")):
        device = "cuda" if place.is_gpu else "cpu"
        tensors = [
            torch.randn(shape.batch, heads, shape.length, shape.size, device=device, dtype=getattr(torch, dtype))
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        ]
        arrays = [convert(tensor, "cupy" if place.is_gpu else "numpy") for tensor in tensors]
        yield _raced(place, shape, dtype, arrays, _rivals(shape, tensors, place.is_gpu))


def _raced(place: Place, shape: Prefill, dtype: str, arrays: list[Array], rivals: dict[str, Any]) -> Line:
    def ours() -> object:
        return ak.attention(*arrays, mask=shape.mask, backend=f"{place.backend}:raw")

    taken = place.seconds(ours, *rivals.values())
    figures = {"TFLOP/s": shape.operations / taken[0] / 1e12}
    figures |= {f"time / {name}": taken[0] / seconds for name, seconds in zip(rivals, taken[1:], strict=True)}
    return Line("prefill", f"{dtype} {_name(shape)}", "measured", figures)


def _name(shape: Prefill) -> str:
    mask = f"window {shape.window}" if shape.window else "causal" if shape.causal else "whole"
    return f"B{shape.batch} H{shape.heads} K{shape.kv_heads} T{shape.length} D{shape.size} {mask}"


def _rivals(shape: Prefill, tensors: list[Any], is_gpu: bool) -> dict[str, Callable[[], object]]:
    """Give torch's kernels that take a call, ready to run; a window is left to none of them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def run(kernel: Any) -> object:
        chosen: AbstractContextManager[object] = nullcontext() if kernel is None else sdpa_kernel(kernel)
        grouped = shape.heads != shape.kv_heads
        with chosen:
            return scaled_dot_product_attention(*tensors, is_causal=shape.causal, enable_gqa=grouped)

    if shape.window:
        return {}
    kernels = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION} if is_gpu else {"torch": None}
    found: dict[str, Callable[[], object]] = {}
    for name, kernel in kernels.items():
        try:
            run(kernel)
        except RuntimeError:  # no such kernel for this call
            continue
        found[name] = lambda kernel=kernel: run(kernel)  # type: ignore[misc]
    return found


def decode(place: Place) -> Iterator[Line]:
    """Time decoding steps, and how many bytes of keys and values a second they read, of those that a copy moves."""
    copied = _copy_bandwidth(place)
    yield Line("decode", "copy", "measured", {"GB/s": copied / 1e9})
    steps = (
        [(1, 2, 1, 64, 64)]
        if place.tiny
        else [
            (8, 32, 8, 32768, 128),
            (1, 32, 8, 32768, 128),
            (32, 32, 8, 4096, 128),
            (8, 32, 32, 8192, 128),
            (1, 8, 1, 131072, 128),
        ]
    )
    for (batch, heads, kv_heads, keys, size), codec in product(steps, ("native", "int8")):
        config = ak.KVCacheConfig(
            num_layers=1,
            batch_size=batch,
            num_kv_heads=kv_heads,
            head_dim=size,
            dtype="float16",
            layout="paged",
            page_size=16,
            max_length=keys,
            codec=codec,
        )
        name = f"B{batch} H{heads} K{kv_heads} S{keys} D{size} pages of 16, {codec}"
        yield _stepped(place, name, config, heads, keys, copied)


def _stepped(place: Place, name: str, config: ak.KVCacheConfig, heads: int, keys: int, copied: float) -> Line:
    rng = np.random.default_rng(0)
    cache = ak.make_cache(config, backend=f"{place.backend}:raw")
    piece = config.page_size or keys  # sequences that grow by turns have no two pages in a row
    shape = config.batch_size, config.num_kv_heads, piece, config.head_dim
    tokens = place.array(rng.standard_normal(shape).astype(np.float16))
    for _ in range(keys // piece):
        cache[0].append(tokens, tokens)
    query = place.array(rng.standard_normal((config.batch_size, heads, 1, config.head_dim)).astype(np.float16))
    (taken,) = place.seconds(lambda: cache[0].attend(query, mask=ak.Mask.causal()))
    rate = cache.nbytes / taken
    return Line("decode", name, "measured", {"us": 1e6 * taken, "GB/s": rate / 1e9, "of a copy": rate / copied})


def _copy_bandwidth(place: Place) -> float:
    """Give the bytes that a copy reads and writes in a second."""
    xp = place.runtime.xp
    source = xp.zeros(2**16 if place.tiny else 2**28, "float32")
    target = xp.empty_like(source)
    (taken,) = place.seconds(lambda: xp.copyto(target, source))
    return float(2 * source.nbytes / taken)
