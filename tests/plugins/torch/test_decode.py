"""torch:decode: few queries over many keys, with what the fused kernel knows and what it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnkit as ak
from attnkit_torch import decode


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small calls into many blocks of keys."""
    monkeypatch.setattr(decode, "_block_length", lambda query, ours: 16)


@pytest.mark.parametrize("seed", range(100))
def test_equals_oracle(calls: Any, seed: int, small_blocks: None) -> None:
    case = calls.draw_case(2000 + seed)
    calls.check(case, calls.run(case, "decode"))


@pytest.mark.parametrize("seed", range(60))
def test_positional_masks_equal_oracle(calls: Any, seed: int, small_blocks: None) -> None:
    """Without the log-sum-exp 16-bit calls take the kernel too; sinks and ends of windows are merged with it."""
    case = calls.draw_case(3000 + seed).without("softcap", "bias", "alibi", "scale")
    window = ak.Mask.causal() & ak.Mask.window(20) if seed % 2 else ak.Mask.window(30, 2)
    case = case._replace(options={**case.options, "mask": window})
    calls.check(case, calls.run(case, "decode", lse=False))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("options", [{}, {"softcap": 4.0}])
def test_long_histories_equal_oracle(calls: Any, dtype: str, rows: int, options: dict[str, Any]) -> None:
    arrays = calls.draw(np.random.default_rng(5), "zero-sum", (2, 4, 2, rows, 1500, 32, 32), dtype)
    case = calls.Case(arrays, {"mask": ak.Mask.causal(), "kv_lengths": np.array([1500, 601]), **options})
    calls.check(case, calls.run(case, "decode", lse=False))


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float64"])
def test_history_of_another_type_is_converted_by_value(stored: str) -> None:
    torch.manual_seed(0)
    key, value, query = torch.randn(2, 2, 50, 16), torch.randn(2, 2, 50, 16), torch.randn(2, 4, 1, 16)
    config = ak.KVCacheConfig(num_layers=1, batch_size=2, num_kv_heads=2, head_dim=16, dtype=stored)
    layer = ak.make_cache(config, backend="torch:decode")[0]
    layer.append(key, value)
    found = layer.attend(query, mask=ak.Mask.causal())
    dtype = getattr(torch, stored)
    widened = [array.to(dtype).double() for array in (key, value)]
    expected = ak.attention(query.double(), *widened, mask=ak.Mask.causal(), backend="torch:dense")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)


def test_keys_that_no_query_sees_are_not_read() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 8)
    options: dict[str, Any] = {
        "mask": ak.Mask.causal() & ak.Mask.window(20),
        "kv_lengths": 70,
        "backend": "torch:decode",
    }
    before = ak.attention(query, key, value, **options)
    for array in (key, value):
        array[:, :, :49] = array[:, :, 70:] = torch.nan
    assert torch.equal(ak.attention(query, key, value, **options), before)


@pytest.mark.parametrize("options", [{}, {"mask": ak.Mask.window(30)}, {"sinks": torch.ones(4)}, {"softcap": 9.0}])
def test_strides_do_not_matter(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 2, 4, 16).transpose(1, 2)[..., ::2]
    key, value = torch.randn(1, 1, 40, 8).expand(1, 2, 40, 8), torch.randn(1, 40, 2, 8).transpose(1, 2)
    found = ak.attention(query, key, value, **options, backend="torch:decode")
    copies = (array.contiguous() for array in (query, key, value))
    torch.testing.assert_close(found, ak.attention(*copies, **options, backend="torch:decode"), rtol=0, atol=1e-6)


def test_refuses_many_rows_and_gradients() -> None:
    many = [torch.randn(1, 8, decode.MOST_ROWS // 4 + 1, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)]
    with pytest.raises(ak.UnsupportedError, match="query_length"):
        ak.attention(*many, backend="torch:decode")
    with pytest.raises(ak.UnsupportedError, match="grad"):
        ak.attention(torch.randn(1, 2, 1, 8, requires_grad=True), many[1], many[2], backend="torch:decode")
