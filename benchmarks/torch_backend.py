"""The torch backend against calling torch directly: prefill, grouped decode, sliding windows, training, small calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attnkit as ak
from benchmarks.results import Result
from benchmarks.timing import compare, seconds

Tensor = Any
Work = Callable[[], object]
THREADS = 2
CAUSAL = ak.Mask.causal()


def prefill() -> Iterator[Result]:
    """Causal prefill through ``attnkit`` over ``scaled_dot_product_attention`` called directly."""
    for heads, length, size, dtype, bar, goal in (
        (8, 2048, 128, "float32", 1.05, 1.02),
        (8, 1024, 64, "float32", 1.05, 1.02),
        (8, 1024, 64, "bfloat16", 1.05, 1.02),
        (8, 128, 64, "float32", None, None),
    ):
        name = f"torch / SDPA, causal, B1 H{heads} T{length} D{size} {dtype}"
        if torch := _torch(THREADS):
            arrays = _draw(torch, dtype, *[(1, heads, length, size)] * 3)
            ours = partial(ak.attention, *arrays, mask=CAUSAL)
            theirs = partial(torch.nn.functional.scaled_dot_product_attention, *arrays, is_causal=True)
            yield _ratio(name, ours, theirs, bar, goal, turns=41)
        else:
            yield _absent(name, bar, goal)


def decode() -> Iterator[Result]:
    """One decode step with grouped heads over ``scaled_dot_product_attention(enable_gqa=True)``."""
    for dtype in ("float32", "bfloat16"):
        name = f"torch / SDPA(enable_gqa), decode, H32 K8 S8192 D128 {dtype}"
        if torch := _torch(THREADS):
            arrays = _draw(torch, dtype, (1, 32, 1, 128), *[(1, 8, 8192, 128)] * 2)
            theirs = partial(torch.nn.functional.scaled_dot_product_attention, *arrays, enable_gqa=True)
            yield _ratio(name, partial(ak.attention, *arrays), theirs, 1 / 1.5, 1 / 2)
        else:
            yield _absent(name, 1 / 1.5, 1 / 2)


def window() -> Iterator[Result]:
    """A sliding window over ``scaled_dot_product_attention`` with the window as a boolean mask."""
    length, width = 8192, 512
    name = f"torch / SDPA(attn_mask), window, B1 H8 T{length} W{width} D64 float32"
    if torch := _torch(THREADS):
        arrays = _draw(torch, "float32", *[(1, 8, length, 64)] * 3)
        mask = ak.Mask.causal() & ak.Mask.window(width)
        shown = torch.from_numpy(mask.as_array(length, length))
        theirs = partial(torch.nn.functional.scaled_dot_product_attention, *arrays, attn_mask=shown)
        yield _ratio(name, partial(ak.attention, *arrays, mask=mask), theirs, 1 / 5, 1 / 10, turns=5)
    else:
        yield _absent(name, 1 / 5, 1 / 10)


def training() -> Iterator[Result]:
    """Forward and backward of causal attention, through ``attnkit`` and through SDPA directly."""
    for path in ("torch", "torch:tiled"):
        name = f"{path} / SDPA, forward and backward, causal, B1 H8 T1024 D64 float32"
        if torch := _torch(THREADS):
            arrays = [tensor.requires_grad_() for tensor in _draw(torch, "float32", *[(1, 8, 1024, 64)] * 3)]
            ours = partial(ak.attention, *arrays, mask=CAUSAL, backend=path)
            theirs = partial(torch.nn.functional.scaled_dot_product_attention, *arrays, is_causal=True)
            yield _ratio(name, _with_backward(torch, ours, arrays), _with_backward(torch, theirs, arrays), None, None)
        else:
            yield _absent(name, None, None)


def small_call() -> Iterator[Result]:
    """What ``attnkit`` adds to a small call, over the same call of SDPA."""
    name = "overhead of a small call on torch over SDPA, B1 H1 T1 S1 D8"
    if torch := _torch(1):
        arrays = _draw(torch, "float32", *[(1, 1, 1, 8)] * 3)
        direct = partial(torch.nn.functional.scaled_dot_product_attention, *arrays)
        least = [min(seconds(call, calls=1000) for _ in range(40)) for call in (partial(ak.attention, *arrays), direct)]
        yield Result(name, (least[0] - least[1]) * 1e6, 10, 3, "us", note=f"SDPA itself {least[1] * 1e6:.1f} us")
    else:
        yield _absent(name, 10, 3)


def _with_backward(torch: Any, forward: Callable[[], Tensor], arrays: list[Tensor]) -> Work:
    seed = torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), arrays, seed)


def _ratio(name: str, ours: Work, theirs: Work, bar: float | None, goal: float | None, turns: int = 15) -> Result:
    found = compare(ours, theirs, turns=turns)
    note = f"{1 / found.ratio:.1f} times faster; " if found.ratio < 0.7 else ""
    return Result(name, found.ratio, bar, goal, note=f"{note}baseline spread {found.spread:.0%}, round {found.rounds}")


def _absent(name: str, bar: float | None, goal: float | None) -> Result:
    return Result(name, None, bar, goal, note="torch is not installed: pip install 'attnkit[bench]'")


def _torch(threads: int) -> Any:
    """Give torch with that many threads, or ``None`` without it."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def _draw(torch: Any, dtype: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes]
