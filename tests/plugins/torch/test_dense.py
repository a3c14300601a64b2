"""torch:dense against the oracle, and its gradients, of which all other paths' are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import attnkit as ak
from attnkit_torch import dense

CASES = {
    "causal": {"mask": ak.Mask.causal()},
    "window": {"mask": ak.Mask.window(3, 1)},
    "prefix": {"mask": ak.Mask.prefix(2), "key_offset": 1},
    "chunked": {"mask": ak.Mask.chunked(4), "query_offset": np.array([2, 5])},
    "documents": {"mask": ak.Mask.documents(np.array([0, 0, 1, 3]), np.array([0, 0, 0, 1, 1, 2]))},
    "dense": {"mask": ak.Mask.dense(np.arange(24).reshape(1, 1, 4, 6) % 3 > 0)},
    "lengths": {"query_lengths": np.array([4, 2]), "kv_lengths": np.array([0, 3])},
    "softcap": {"softcap": 0.7, "mask": ak.Mask.causal()},
    "scale": {"scale": -0.4},
    "zero-scale": {"scale": 0.0},
}


def arrays(*, heads: int = 4, kv_heads: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(3)
    shapes = (2, heads, 4, 3), (2, kv_heads, 6, 3), (2, kv_heads, 6, 2)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("seed", range(80))
def test_equals_oracle(calls: Any, seed: int) -> None:
    case = calls.draw_case(seed)
    calls.check(case, calls.run(case, "dense"))


@pytest.mark.parametrize("seed", range(20))
def test_cut_batch_equals_whole_batch(calls: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = calls.draw_case(1000 + seed)
    monkeypatch.setattr(dense, "_MOST", 1)
    calls.check(case, calls.run(case, "dense"))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_derivatives(name: str) -> None:
    def attend(*tensors: torch.Tensor) -> Any:
        return tuple(ak.attention_with_lse(*tensors, **CASES[name], backend="torch:dense"))

    def finite(*tensors: torch.Tensor) -> Any:
        output, lse = attend(*tensors)
        return output, torch.where(lse == -np.inf, 0, lse)

    assert gradcheck(finite, arrays(), fast_mode=True)


@pytest.mark.parametrize("shape", [(2, 4, 4, 6), (1, 4, 1, 6), (2, 1, 4, 1), (1, 1, 1, 1)])
def test_gradients_of_bias_and_sinks_are_derivatives(shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def attend(*tensors: torch.Tensor) -> Any:
        options = {"mask": ak.Mask.causal(), "alibi": torch.tensor([0.5, 0.25, 0.1, 0.0]), "softcap": 2.0}
        *qkv, bias, sinks = tensors
        return tuple(ak.attention_with_lse(*qkv, bias=bias, sinks=sinks, **options, backend="torch:dense"))

    assert gradcheck(attend, (*arrays(), bias, sinks), fast_mode=True)


def test_second_derivatives() -> None:
    def attend(*tensors: torch.Tensor) -> Any:
        return ak.attention(*tensors, mask=ak.Mask.window(3), softcap=2.0, backend="torch:dense")

    assert gradgradcheck(attend, arrays(kv_heads=1), fast_mode=True)


def test_padding_and_empty_rows_have_no_gradients() -> None:
    query, key, value = (array.detach() for array in arrays())
    query[1, :, 3:], key[1, :, 4:], value[1, :, 4:] = np.nan, np.inf, np.nan
    tensors = [array.requires_grad_() for array in (query, key, value)]
    options = {"query_lengths": np.array([4, 3]), "kv_lengths": np.array([0, 4]), "softcap": 3.0}
    output, lse = ak.attention_with_lse(*tensors, **options, backend="torch:dense")
    assert torch.equal(output[0], torch.zeros_like(output[0]))
    found = torch.autograd.grad((output, lse), tensors, (torch.ones_like(output), torch.ones_like(lse)))
    for grad, valid in zip(found, (3, 4, 4), strict=True):
        assert torch.equal(grad[0], torch.zeros_like(grad[0]))
        assert torch.equal(grad[1, :, valid:], torch.zeros_like(grad[1, :, valid:]))
        assert grad[1].isfinite().all()
        assert grad[1, :, :valid].any()


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_numbers_do_not_matter_however_large(dtype: torch.dtype, softcap: float | None) -> None:
    torch.manual_seed(5)
    query, key, value = (torch.randn(1, 2, 6, 8).to(dtype) for _ in range(3))
    query[:, :, 5] = 0  # of all queries only the last sees the last key, and takes no harm
    huge_key, huge_value = key.clone(), value.clone()
    huge_key[:, :, 5], huge_value[:, :, 5] = torch.finfo(dtype).max, -torch.finfo(dtype).max

    def rows_and_gradients(key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        tensors = [array.clone().requires_grad_() for array in (query, key, value)]
        output = ak.attention(*tensors, mask=ak.Mask.causal(), softcap=softcap, backend="torch:dense")[:, :, :5]
        return [output, *(g[:, :, :5] for g in torch.autograd.grad(output.float().sum(), tensors))]

    before, after = rows_and_gradients(key, value), rows_and_gradients(huge_key, huge_value)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


def test_sinks_of_minus_infinity_are_none() -> None:
    tensors, sinks = arrays(), torch.full((4,), -np.inf, dtype=torch.float64, requires_grad=True)
    options = {"kv_lengths": np.array([0, 3])}
    output, lse = ak.attention_with_lse(*tensors, sinks=sinks, **options, backend="torch:dense")
    plain = ak.attention_with_lse(*tensors, **options, backend="torch:dense")
    assert torch.equal(output, plain.output)
    assert torch.equal(lse, plain.lse)
    (found,) = torch.autograd.grad((output, lse), sinks, (torch.ones_like(output), torch.ones_like(lse)))
    assert torch.equal(found, torch.zeros(4, dtype=torch.float64))


def test_what_a_loss_says_about_padding_is_dead() -> None:
    def gradients(beyond: float) -> tuple[torch.Tensor, ...]:
        tensors = arrays()
        output = ak.attention(*tensors, query_lengths=np.array([4, 2]), backend="torch:dense")
        cotangents = torch.ones_like(output)
        cotangents[1, :, 2:] = beyond
        return torch.autograd.grad(output, tensors, cotangents)

    for one, other in zip(gradients(np.nan), gradients(0.0), strict=True):
        assert torch.equal(one, other)
