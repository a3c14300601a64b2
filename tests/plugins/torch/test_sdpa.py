"""torch:sdpa: the fused kernels on calls without a mask and causal ones of any alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import attnkit as ak

# (T, S, query_offset, key_offset, query_lengths, kv_lengths)
ALIGNMENTS = {
    "square": (5, 5, None, None, None, None),
    "past": (3, 7, None, None, None, None),
    "one": (1, 6, None, None, None, None),
    "more queries": (6, 4, None, None, None, None),
    "ahead of all keys": (3, 4, 9, None, None, None),
    "before all keys": (3, 4, -5, None, None, None),
    "shifted keys": (5, 6, 3, 2, None, None),
    "ragged": (4, 6, None, None, [4, 2], [6, 3]),
    "ragged past": (4, 6, [0, 2], None, None, [6, 5]),
    "empty": (4, 6, None, None, [4, 3], [6, 0]),
}


def options_of(alignment: str) -> dict[str, Any]:
    _, _, *numbers = ALIGNMENTS[alignment]
    names = ("query_offset", "key_offset", "query_lengths", "kv_lengths")
    found = {name: number for name, number in zip(names, numbers, strict=True) if number is not None}
    return {name: np.array(number) if isinstance(number, list) else number for name, number in found.items()}


def arrays(alignment: str, dtype: torch.dtype = torch.float64, value_dim: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(1)
    rows, keys, *_ = ALIGNMENTS[alignment]
    return [torch.randn(shape).to(dtype) for shape in ((2, 4, rows, 8), (2, 2, keys, 8), (2, 2, keys, value_dim))]


@pytest.mark.parametrize("seed", range(100))
def test_equals_oracle(calls: Any, seed: int) -> None:
    case = calls.draw_aligned(seed)
    calls.check(case, calls.run(case, "sdpa", lse=case.arrays[0].dtype in (np.float32, np.float64)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("mask", [None, ak.Mask.causal()])
def test_long_calls_equal_oracle(calls: Any, dtype: str, mask: ak.Mask | None) -> None:
    """Long enough for several blocks of the kernel, and for 16-bit scores or sums to be seen."""
    arrays = calls.draw(np.random.default_rng(8), "zero-sum", (1, 2, 1, 70, 900, 64, 64), dtype)
    case = calls.Case(arrays, {"mask": mask})
    calls.check(case, calls.run(case, "sdpa", lse=False))


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("mask", [None, ak.Mask.causal()])
@pytest.mark.parametrize("value_dim", [8, 10])
def test_gradients_are_derivatives(alignment: str, mask: ak.Mask | None, value_dim: int) -> None:
    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ak.attention(*tensors, mask=mask, **options_of(alignment), backend="torch:sdpa")
        return result

    assert gradcheck(
        attend, [array.requires_grad_() for array in arrays(alignment, value_dim=value_dim)], fast_mode=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_gradients_are_those_of_float64(dtype: torch.dtype, alignment: str) -> None:
    """Each is a sum of T + S + D products at most, of weights and numbers that were rounded to the dtype."""
    tensors = arrays(alignment, dtype)
    found = _gradients(tensors, "sdpa", mask=ak.Mask.causal(), **options_of(alignment))
    exact = _gradients([a.double() for a in tensors], "dense", mask=ak.Mask.causal(), **options_of(alignment))
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).abs().max() <= 16 * torch.finfo(dtype).eps * max(1.0, other.abs().max())


def _gradients(tensors: list[torch.Tensor], path: str, **options: Any) -> list[torch.Tensor]:
    leaves = [array.detach().clone().requires_grad_() for array in tensors]
    output = ak.attention(*leaves, **options, backend=f"torch:{path}")
    return list(torch.autograd.grad(output, leaves, torch.ones_like(output)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_is_read_neither_forward_nor_backward(dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"query_lengths": np.array([3, 2]), "kv_lengths": np.array([4, 6])}
    clean = arrays("ragged", dtype)
    dirty = [array.clone() for array in clean]
    for array, lengths in zip(dirty, ((3, 2), (4, 6), (4, 6)), strict=True):
        for sequence, length in enumerate(lengths):
            array[sequence, :, length:] = torch.nan
    for mask in (None, ak.Mask.causal()):
        one, other = (ak.attention(*a, mask=mask, **options, backend="torch:sdpa") for a in (clean, dirty))
        assert torch.equal(one, other)
        found, expected = (_gradients(a, "sdpa", mask=mask, **options) for a in (dirty, clean))
        for grad, same, lengths in zip(found, expected, ((3, 2), (4, 6), (4, 6)), strict=True):
            assert torch.equal(grad, same)
            assert not grad[0, :, lengths[0] :].any()
            assert not grad[1, :, lengths[1] :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_hidden_numbers_do_not_matter_however_large(dtype: torch.dtype) -> None:
    """Only the last query sees the last key, which is as large as can be; it is 0, so that nothing overflows."""
    query, key, value = (torch.randn(1, 2, 6, 8).to(dtype) for _ in range(3))
    query[:, :, 5] = 0
    key[:, :, 5], value[:, :, 5] = torch.finfo(dtype).max, torch.finfo(dtype).max
    leaves = [array.requires_grad_() for array in (query, key, value)]
    output = ak.attention(*leaves, mask=ak.Mask.causal(), backend="torch:sdpa")
    grad = torch.ones_like(output)
    grad[:, :, 5] = 0
    found = torch.autograd.grad(output, leaves, grad)
    smaller = [array.detach()[:, :, :5] for array in leaves]
    assert torch.equal(output[:, :, :5], ak.attention(*smaller, mask=ak.Mask.causal(), backend="torch:sdpa"))
    for one, other in zip(found, _gradients(smaller, "sdpa", mask=ak.Mask.causal()), strict=True):
        error = (one[:, :, :5].double() - other.double()).abs().max()
        assert error <= 16 * torch.finfo(dtype).eps * max(1.0, other.double().abs().max())


def test_views_are_read_as_they_are() -> None:
    torch.manual_seed(2)
    wide = torch.randn(2, 5, 4, 16)
    query, key = wide.transpose(1, 2)[..., ::2], torch.randn(2, 1, 7, 8).expand(2, 2, 7, 8)
    value = torch.randn(7, 8).t().expand(2, 2, 8, 7).mT
    for mask in (None, ak.Mask.causal()):
        found = ak.attention(query, key, value, mask=mask, backend="torch:sdpa")
        copies = (array.contiguous() for array in (query, key, value))
        assert torch.equal(found, ak.attention(*copies, mask=mask, backend="torch:sdpa"))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"mask": ak.Mask.window(4)}, "mask"),
        ({"mask": ak.Mask.causal() & ak.Mask.window(4)}, "mask"),
        ({"mask": ak.Mask.dense(np.ones((5, 5), bool))}, "mask"),
        ({"softcap": 2.0}, "softcap"),
        ({"bias": torch.zeros(5, 5)}, "bias"),
        ({"alibi": torch.ones(4)}, "alibi"),
        ({"sinks": torch.ones(4)}, "sinks"),
        ({"mask": ak.Mask.causal(), "head_dim": 4}, "head_dim"),
        ({"scale": 0.0}, "scale"),
        ({"scale": -1.0}, "scale"),
        ({"scale": 1e-40}, "scale"),
    ],
)
def test_refuses_what_the_kernels_do_not_mean(options: dict[str, Any], field: str) -> None:
    size = options.get("head_dim", 8)
    options = {name: option for name, option in options.items() if name != "head_dim"}
    tensors = [array[..., :size] for array in arrays("square", torch.float32)]
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*tensors, **options, backend="torch:sdpa")
    (reason,) = caught.value.reasons["torch:sdpa"]
    assert (reason.code, reason.field) == ("path", field)


def test_refuses_log_sum_exp_that_would_be_inexact_or_without_gradient() -> None:
    with pytest.raises(ak.UnsupportedError, match="lse"):
        ak.attention_with_lse(*arrays("square", torch.bfloat16), backend="torch:sdpa")
    leaves = [array.requires_grad_() for array in arrays("square")]
    with pytest.raises(ak.UnsupportedError, match="lse"):
        ak.attention_with_lse(*leaves, backend="torch:sdpa")
