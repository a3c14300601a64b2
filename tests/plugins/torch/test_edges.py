"""What is neither dropped nor read although it would be easy: derivatives at the edges, and odd tensors.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import attnkit as ak
from attnkit_torch import TorchMultiHeadAttention

DENSE = ak.Mask.dense


def draw(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)
    query, key, value = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return query, key, value


def test_slopes_have_gradients_under_transformations_too() -> None:
    query, key, value = draw(torch.float64)
    slopes = torch.linspace(0.1, 0.9, 4, dtype=torch.float64)

    def loss(slopes: torch.Tensor) -> torch.Tensor:
        return ak.attention(query, key, value, alibi=slopes).square().sum()

    leaf = slopes.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    assert (expected != 0).all()
    torch.testing.assert_close(torch.func.grad(loss)(slopes), expected)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf), leaf)[0], expected)


@pytest.mark.parametrize("path", ["sdpa", "tiled"])
def test_second_derivatives_are_refused_and_not_dropped(path: str) -> None:
    query, key, value = draw(torch.float64)
    leaf = query.requires_grad_()
    output = ak.attention(leaf, key, value, backend=f"torch:{path}")
    (grad,) = torch.autograd.grad(output.sum(), leaf, create_graph=True)
    assert grad.requires_grad
    with pytest.raises(RuntimeError, match=f"torch:{path} has gradients of the first order only; torch:dense"):
        grad.square().sum().backward()


def test_dense_has_second_derivatives() -> None:
    arrays = tuple(array.requires_grad_() for array in draw(torch.float64))

    def call(*arrays: torch.Tensor) -> torch.Tensor:
        return ak.attention(*arrays, mask=ak.Mask.causal(), backend="torch:dense")

    assert torch.autograd.gradgradcheck(call, arrays, fast_mode=True)


@pytest.mark.parametrize("mask", ["dense", "documents"])
def test_a_mask_that_is_written_into_before_the_way_back_is_noticed(mask: str) -> None:
    query, key, value = draw()
    ids = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    shown = torch.arange(35).reshape(5, 7) % 3 > 0
    written = shown if mask == "dense" else ids[1]
    chosen = DENSE(shown) if mask == "dense" else ak.Mask.documents(*ids)
    output = ak.attention(query.requires_grad_(), key, value, mask=chosen, backend="torch:tiled")
    written.fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_lazily_negated_tensors_keep_their_sign_when_they_are_converted() -> None:
    pairs = torch.randn(2, 4, 5, 8, 2, generator=torch.Generator().manual_seed(1))
    query = torch.view_as_complex(pairs).conj().imag
    assert query.is_neg()
    _, key, value = draw()
    expected = ak.attention(query.clone(), key, value, backend="torch")
    torch.testing.assert_close(ak.attention(query, key, value, backend="numpy"), expected)
    cache = ak.make_cache(ak.KVCacheConfig(batch_size=2, num_kv_heads=4, head_dim=8), backend="numpy")
    cache[0].append(query, query)
    np.testing.assert_array_equal(cache[0].read()[0], query.resolve_neg().numpy())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch scripts its formulas of forward mode
@pytest.mark.parametrize("backend", [None, "numpy", "torch:sdpa", "torch:tiled"])
def test_forward_mode_is_refused_where_tangents_would_be_dropped(backend: str | None) -> None:
    query, key, value = draw()
    with (
        forward_ad.dual_level(),
        pytest.raises(ak.UnsupportedError, match="forward-mode derivatives on backend='torch:dense'"),
    ):
        ak.attention(query, forward_ad.make_dual(key, torch.ones_like(key)), value, backend=backend)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_dense_has_forward_mode() -> None:
    query, key, value = draw(torch.float64)
    tangent = torch.ones_like(query)
    step = 1e-6 * tangent
    with forward_ad.dual_level():
        output = ak.attention(forward_ad.make_dual(query, tangent), key, value, backend="torch:dense")
        found = forward_ad.unpack_dual(output).tangent
    ahead, behind = (ak.attention(query + sign * step, key, value, backend="torch:dense") for sign in (1, -1))
    torch.testing.assert_close(found, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8)


ODD: dict[str, Any] = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "nested": lambda tensor: torch.nested.nested_tensor(list(tensor)),
    "mkldnn": lambda tensor: tensor.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own note on them
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_tensors_that_are_not_strided_are_refused(kind: str, place: str) -> None:
    arrays = dict(zip(("query", "key", "value"), draw(), strict=True))
    arrays[place] = ODD[kind](arrays[place])
    with pytest.raises(ak.DTypeError, match=f"{place} must be a dense, strided array, got a {kind} one"):
        ak.attention(*arrays.values())


def test_the_module_gives_weights_over_a_cache_of_another_library() -> None:
    torch.manual_seed(0)
    module = TorchMultiHeadAttention(16, 4, batch_first=True, mask=ak.Mask.causal()).eval()
    x = torch.randn(2, 5, 16)
    config = ak.KVCacheConfig(batch_size=2, num_kv_heads=4, head_dim=4)
    with torch.no_grad():
        caches = [ak.make_cache(config, backend=name) for name in ("numpy", "torch")]
        found, expected = (module(x, x, x, cache=cache[0]) for cache in caches)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found[1].sum(-1), torch.ones(2, 5))
