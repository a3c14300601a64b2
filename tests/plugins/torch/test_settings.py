"""Calls under settings of torch that a user may have changed: the same results, and the settings are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnkit as ak

PATHS = [f"torch:{path}" for path in ak.get_backend("torch").paths]
DIFFERENTIABLE = ("torch:sdpa", "torch:tiled", "torch:dense")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    yield
    torch.set_float32_matmul_precision(before)


# How to change each; autocast has tests of its own.
SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "another device by default": lambda: torch.device("meta"),
    "deterministic algorithms": deterministic,
    "low precision allowed": lambda: matmul_precision("medium"),
    "one kernel alone": lambda: sdpa_kernel(SDPBackend.MATH),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": ak.Mask.causal()},
    "lengths": {"mask": ak.Mask.causal(), "kv_lengths": [30, 65], "query_lengths": [3, 2]},
    "everything": {
        "mask": ak.Mask.causal() & ak.Mask.window(20) & ak.Mask.documents([0] * 3, [0] * 60 + [1] * 5),
        "softcap": 3.0,
        "bias": torch.linspace(-1, 1, 195).reshape(3, 65),
        "alibi": torch.tensor([0.5, 0.25, 0.1, 0.0]),
        "sinks": torch.tensor([0.0, 1.0, -1.0, 2.0]),
    },
}


def draw(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (4, 3), (2, 65), (2, 65)
    return [torch.randn(2, *size, 16, generator=generator, dtype=torch.float32).to(dtype) for size in sizes]


def settings() -> list[Any]:
    """Give what a call must leave as it was."""
    kinds = ("flash", "mem_efficient", "math")
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds],
    ]


def taken(call: Callable[[], Any]) -> Any:
    """Make a call; the test is skipped where the path is made for other calls, and for nothing else."""
    try:
        return call()
    except ak.UnsupportedError as error:
        reasons = [reason for why in error.reasons.values() for reason in why]
        assert {reason.code for reason in reasons} == {"path"}
        pytest.skip(f"not made for {', '.join(reason.field for reason in reasons)}")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_results_and_settings_stay(path, dtype, options, setting) -> None:
    arrays = draw(dtype)
    expected = taken(lambda: ak.attention(*arrays, **OPTIONS[options], backend=path))
    with SETTINGS[setting]():
        before = settings()
        found = ak.attention(*arrays, **OPTIONS[options], backend=path)
        assert settings() == before
    assert found.device == expected.device
    assert found.dtype == dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name not in ("no gradients", "inference")])
@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
@pytest.mark.parametrize("options", ["causal", "everything"])
@pytest.mark.parametrize("path", DIFFERENTIABLE)
def test_gradients_and_settings_stay(path, options, inside, setting) -> None:
    leaves, send = [array.requires_grad_() for array in draw(torch.float32)], torch.linspace(-1, 1, 16)
    output = taken(lambda: ak.attention(*leaves, **OPTIONS[options], backend=path))
    expected = torch.autograd.grad(output, leaves, send.expand(output.shape))
    with ExitStack() as stack:
        stack.enter_context(SETTINGS[setting]())
        before = settings()
        output = ak.attention(*leaves, **OPTIONS[options], backend=path)
        if not inside:
            stack.close()
            before = settings()
        found = torch.autograd.grad(output, leaves, send.expand(output.shape))
        assert settings() == before
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("path", DIFFERENTIABLE)
def test_autocast_casts_query_key_and_value_and_nothing_else(path, options) -> None:
    """As it does for ``scaled_dot_product_attention``; products of the call itself are not cast again."""
    leaves = [array.requires_grad_() for array in draw(torch.float32)]
    expected = taken(lambda: ak.attention(*(leaf.bfloat16() for leaf in leaves), **OPTIONS[options], backend=path))
    with torch.autocast("cpu", torch.bfloat16):
        before = settings()
        found = ak.attention(*leaves, **OPTIONS[options], backend=path)
        assert settings() == before
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    gradients = (torch.autograd.grad(output.sin().sum(), leaves) for output in (found, expected))
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_autocast_leaves_other_types_alone(path, dtype) -> None:
    arrays = draw(dtype)
    expected = ak.attention(*arrays, backend=path)
    with torch.autocast("cpu", torch.bfloat16):
        found = ak.attention(*arrays, backend=path)
    assert found.dtype == dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("setting", ["no gradients", "inference"])
@pytest.mark.parametrize("path", PATHS)
def test_no_graph_is_made_where_none_is_wanted(path, setting) -> None:
    leaves = [array.requires_grad_() for array in draw(torch.float32)]
    with SETTINGS[setting]():
        output = ak.attention(*leaves, backend=path)
    assert not output.requires_grad
    assert output.grad_fn is None
