"""Calls of many threads at once: the same bits as of one, and a choice of backend that stays in its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import attnkit as ak

PATHS = [f"torch:{path}" for path in ak.get_backend("torch").paths]
DIFFERENTIABLE = ("torch:sdpa", "torch:tiled", "torch:dense")
SHAPES = [(1, 4, 2, 3, 65, 16), (2, 2, 2, 4, 33, 8), (1, 6, 3, 2, 130, 16), (1, 2, 1, 8, 8, 24)]  # B, H, K, T, S, D


@pytest.fixture(params=[1, 3])
def torch_threads(request) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do each work in a thread of its own, all starting together."""
    barrier = threading.Barrier(len(works), timeout=60)

    def start(work: Callable[[], Any]) -> Any:
        barrier.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(start, works))


def draw(shape: tuple[int, ...]) -> list[torch.Tensor]:
    batch, heads, kv_heads, rows, keys, head_dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = (heads, rows), (kv_heads, keys), (kv_heads, keys)
    return [torch.randn(batch, *size, head_dim, generator=generator) for size in sizes]


def forward(path: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    return list(ak.attention_with_lse(*draw(shape), mask=ak.Mask.causal(), backend=path))


def backward(path: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    leaves = [array.requires_grad_() for array in draw(shape)]
    output = ak.attention(*leaves, mask=ak.Mask.causal(), backend=path)
    return [output.detach(), *torch.autograd.grad(output.sin().sum(), leaves)]


@pytest.mark.parametrize(
    ("path", "compute"), [*((path, forward) for path in PATHS), *((path, backward) for path in DIFFERENTIABLE)]
)
def test_threads_give_the_bits_of_one(torch_threads, path, compute) -> None:
    expected = [compute(path, shape) for shape in SHAPES]
    order = [SHAPES[number:] + SHAPES[:number] for number in range(4)] * 2
    found = at_once([lambda shapes=shapes: [(shape, compute(path, shape)) for shape in shapes * 3] for shapes in order])
    for shape, results in (pair for pairs in found for pair in pairs):
        for result, exact in zip(results, expected[SHAPES.index(shape)], strict=True):
            assert torch.equal(result, exact)


def test_backward_in_another_thread_than_forward() -> None:
    """Torch's own pool of threads runs it there where there are several devices."""
    leaves = [array.requires_grad_() for array in draw(SHAPES[0])]
    for path in DIFFERENTIABLE:
        expected = torch.autograd.grad(ak.attention(*leaves, backend=path).sum(), leaves)
        output = ak.attention(*leaves, backend=path).sum()
        (found,) = at_once([lambda output=output: torch.autograd.grad(output, leaves)])
        assert all(map(torch.equal, found, expected))


def test_a_choice_stays_in_its_thread() -> None:
    arrays, met = draw(SHAPES[1]), threading.Barrier(len(PATHS) + 1, timeout=60)

    def chosen(path: str | None) -> str:
        met.wait(60)
        if path is None:
            return run(arrays)
        with ak.use_backend(path):
            return run(arrays)

    def run(arrays: list[torch.Tensor]) -> str:
        met.wait(60)  # all are inside of their contexts
        with ak.trace() as calls:
            ak.attention(*arrays)
            met.wait(60)
        (call,) = calls
        return f"{call.backend}:{call.path}"

    automatic = ak.explain(*arrays)
    found = at_once([lambda path=path: chosen(path) for path in (*PATHS, None)])
    assert found == [*PATHS, f"{automatic.backend}:{automatic.path}"]
