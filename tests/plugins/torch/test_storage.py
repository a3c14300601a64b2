"""Caches whose bytes lie in torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnkit as ak

BACKEND = ak.get_backend("torch")


def config(**changed: Any) -> ak.KVCacheConfig:
    sizes = {"num_layers": 1, "batch_size": 2, "num_kv_heads": 2, "head_dim": 4}
    return ak.KVCacheConfig(**{**sizes, **changed})


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_come_back_rounded_to_the_stored_type(batch: int, dtype: str) -> None:
    torch.manual_seed(0)
    layer = ak.make_cache(config(batch_size=batch, dtype=dtype), backend="torch")[0]
    key, value = torch.randn(batch, 2, 7, 4), torch.randn(batch, 2, 7, 4)
    layer.append(key[:, :, :5], value[:, :, :5])
    for token in (5, 6):
        layer.append(key[:, :, token : token + 1], value[:, :, token : token + 1])
    for found, given in zip(layer.read(), (key, value), strict=True):
        assert torch.equal(found, given.to(getattr(torch, dtype)))


@pytest.mark.parametrize("batch", [2, 9])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_skipped_tokens_leave_no_trace(batch: int, count: int) -> None:
    plane = BACKEND.allocate((2, batch * 30, 3), "float32")
    slots = (np.arange(batch) * 30)[:, None] + np.arange(count) + 2
    slots[0] = -1
    slots[1, count // 2 + 1 :] = -1
    BACKEND.write(plane, slots, torch.ones(batch, 2, count, 3))
    written = np.zeros(batch * 30, bool)
    written[slots[slots >= 0]] = True
    assert torch.equal(plane, torch.from_numpy(written).float()[None, :, None].expand(2, -1, 3))
    found = BACKEND.gather(plane, slots)
    assert found.shape == (batch, 2, count, 3)
    assert torch.equal(found, torch.from_numpy(slots >= 0).float()[:, None, :, None].expand(-1, 2, -1, 3))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "uint8", "int8"])
@pytest.mark.parametrize(("batch", "count", "run"), [(1, 1, 1), (5, 1, 1), (1, 40, 1), (3, 16, 4), (2, 40, 20)])
def test_what_is_written_is_gathered(dtype: str, batch: int, count: int, run: int) -> None:
    rng = np.random.default_rng(0)
    plane = BACKEND.allocate((3, 200, 5), dtype)
    starts = rng.permutation(200 // run)[: batch * count // run, None] * run
    slots = (starts + np.arange(run)).reshape(batch, count)
    tokens = torch.from_numpy(rng.integers(0, 100, (batch, count, 3, 5))).transpose(1, 2).float()
    BACKEND.write(plane, slots, tokens.to(plane.dtype) if dtype.endswith("int8") else tokens)
    assert torch.equal(BACKEND.gather(plane, slots).float(), tokens)
    assert plane.count_nonzero() == tokens.count_nonzero()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_nothing_is_gathered_from_nowhere(shape: tuple[int, int]) -> None:
    found = BACKEND.gather(BACKEND.allocate((2, 0, 4), "int8"), np.full(shape, -1))
    assert torch.equal(found, torch.zeros(shape[0], 2, shape[1], 4, dtype=torch.int8))


@pytest.mark.parametrize("inside", [True, False])
def test_a_cache_lives_in_and_out_of_inference_mode(inside: bool) -> None:
    torch.manual_seed(0)
    tokens = torch.randn(2, 2, 3, 4)
    with torch.inference_mode(inside):
        layer = ak.make_cache(config(), backend="torch")[0]
        layer.append(tokens, tokens)
    with torch.inference_mode(not inside):
        layer.append(tokens[:, :, :1], tokens[:, :, :1])
        output = layer.attend(torch.randn(2, 4, 1, 4), mask=ak.Mask.causal())
    layer.append(tokens, tokens)
    assert output.isfinite().all()
    assert torch.equal(layer.read()[0], torch.cat([tokens, tokens[:, :, :1], tokens], dim=2))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("batch", [1, 9])
def test_no_gradient_enters_a_cache(batch: int, count: int) -> None:
    layer = ak.make_cache(config(batch_size=batch), backend="torch")[0]
    tokens = torch.randn(batch, 2, count, 4, requires_grad=True)
    layer.append(tokens, tokens)
    assert not any(array.requires_grad for array in layer.read())
    query = torch.randn(batch, 4, 1, 4, requires_grad=True)
    layer.attend(query).sum().backward()
    assert tokens.grad is None
    assert query.grad is not None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_arrays_go_to_torch_and_back_bit_for_bit(calls: Any, dtype: str) -> None:
    array = np.random.default_rng(0).standard_normal((4, 6)).astype(calls.DTYPES[dtype])
    frozen = array[:]
    frozen.flags.writeable = False
    for view in (array, array[::-1, ::2], array.T, frozen, np.broadcast_to(array, (2, 4, 6)), array[:0]):
        tensor = BACKEND.from_numpy(view)
        assert str(tensor.dtype) == f"torch.{dtype}"
        back = BACKEND.to_numpy(tensor)
        assert back.dtype == array.dtype
        assert back.tobytes() == view.tobytes()
    tensor = BACKEND.from_numpy(array)
    tensor.zero_()
    assert array.any()
    BACKEND.to_numpy(tensor.requires_grad_())[:] = 1
    assert not tensor.any()
