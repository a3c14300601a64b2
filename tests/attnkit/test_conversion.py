"""Arrays of one library, a backend of another: the result is right and comes back in the library of the query."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnkit as ak
from attnkit.arrays import library_of
from attnkit.conversion import convert

DTYPES = ("float16", "bfloat16", "float32", "float64")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"mask": ak.Mask.causal() & ak.Mask.window(3)},
    {"softcap": 0.5, "sinks": torch.tensor([0.5, -1.0]), "bias": torch.ones(3, 5)},
    {"alibi": torch.tensor([0.5, 0.25])},
    {"mask": ak.Mask.documents(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1, 0, 1]))},
    {"mask": ak.Mask.dense(torch.ones(3, 5, dtype=torch.bool).tril(1))},
    {"kv_lengths": torch.tensor([4]), "query_lengths": 2},
]


def as_numpy(value: Any) -> Any:
    """Give options with NumPy arrays in the place of tensors."""
    if isinstance(value, ak.Mask):
        return ak.Mask.from_dict(value.to_dict())
    return value.numpy() if isinstance(value, torch.Tensor) else value


def tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, 3, 8), (1, 1, 5, 8), (1, 1, 5, 8)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_tensors_on_numpy(options: dict[str, Any]) -> None:
    arrays = tensors()
    found = ak.attention_with_lse(*arrays, **options, backend="numpy")
    expected = ak.attention_with_lse(
        *(array.numpy() for array in arrays), **{name: as_numpy(value) for name, value in options.items()}
    )
    assert all(type(part) is torch.Tensor for part in found)
    np.testing.assert_array_equal(found.output.numpy(), expected.output)
    np.testing.assert_array_equal(found.lse.numpy(), expected.lse)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_comes_back_as_it_was(dtype: str) -> None:
    arrays = tensors(getattr(torch, dtype))
    assert ak.attention(*arrays, backend="numpy").dtype == arrays[0].dtype
    numpy_arrays = [convert(array, "numpy") for array in arrays]
    assert {array.dtype.name for array in numpy_arrays} == {dtype}
    on_torch = ak.attention_with_lse(*numpy_arrays, backend="torch")
    assert isinstance(on_torch.output, np.ndarray)
    assert on_torch.output.dtype.name == dtype
    assert on_torch.lse.dtype.name == ("float64" if dtype == "float64" else "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_is_shared(dtype: str) -> None:
    tensor = tensors(getattr(torch, dtype))[0]
    there = convert(tensor, "numpy")
    assert there.__array_interface__["data"][0] == tensor.data_ptr()
    back = convert(there, "torch")
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a[..., ::-1],
        lambda a: a.swapaxes(-1, -2).copy().swapaxes(-1, -2),
        lambda a: np.broadcast_to(a[:, :, :1], a.shape),
    ],
    ids=["negative", "transposed", "broadcast"],
)
@pytest.mark.parametrize("writeable", [True, False])
def test_strides_and_locks_of_numpy_arrays(spoil: Any, writeable: bool) -> None:
    array = spoil(np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
    if not writeable:
        array.flags.writeable = False
    before = array.copy()
    np.testing.assert_array_equal(convert(array, "torch").numpy(), before)
    np.testing.assert_array_equal(array, before)


def test_gradients_are_refused_and_not_dropped() -> None:
    query, key, value = tensors()
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(query.requires_grad_(), key, value, backend="numpy")
    assert [reason.code for reason in caught.value.reasons["numpy"]] == ["grad"]


def test_without_gradients_a_parameter_is_an_array_like_others() -> None:
    query, key, value = tensors()
    expected = ak.attention(query, key, value, backend="numpy")
    with torch.no_grad():
        found = ak.attention(torch.nn.Parameter(query), key, value, backend="numpy")
    assert torch.equal(found, expected)


def test_explanations_say_that_arrays_are_converted() -> None:
    explained = ak.explain(*tensors(), backend="numpy")
    assert explained.converted_to == "numpy"
    assert "torch arrays are converted to numpy, the result back" in str(explained)
    assert explained.to_dict()["converted_to"] == "numpy"
    own = ak.explain(*(tensor.numpy() for tensor in tensors()), backend="numpy")
    assert own.converted_to is None
    assert "converted" not in str(own)


def test_automatic_choice_never_converts() -> None:
    assert ak.explain(*tensors()).backend == "torch"
    assert "not_owner" in {reason.code for reason in ak.explain(*tensors()).rejected["numpy"]}


def test_a_cache_takes_arrays_of_another_library() -> None:
    query, key, value = tensors()
    for backend, answer in (("numpy", torch.Tensor), ("torch", torch.Tensor)):
        cache = ak.make_cache(ak.KVCacheConfig(num_kv_heads=1, head_dim=8), backend=backend)
        cache[0].append(key, value)
        assert library_of(cache.pages[0].planes[0]) == backend
        found = cache[0].attend(query)
        assert type(found) is answer
        torch.testing.assert_close(found, ak.attention(query, key, value, backend="numpy"))
        cache[0].append(key.numpy(), value.numpy())
        assert isinstance(cache[0].attend(query.numpy()), np.ndarray)
        assert cache[0].stored.tolist() == [10]


def test_query_key_and_value_still_come_from_one_library() -> None:
    query, key, value = tensors()
    with pytest.raises(ak.DTypeError, match="must come from one array library"):
        ak.attention(query, key.numpy(), value, backend="numpy")


def test_devices_that_have_no_number() -> None:
    query, key, value = tensors()
    away = key.to("meta")
    with pytest.raises(ak.DeviceError, match="must lie on one device, got cpu, meta, cpu"):
        ak.attention(query, away, value)
    with pytest.raises(ak.DeviceError, match="bias must lie on the query's device, cpu, got meta"):
        ak.attention(query, key, value, bias=torch.zeros(3, 5, device="meta"))
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(query.to("meta"), away, value.to("meta"), backend="torch")
    assert [reason.code for reason in caught.value.reasons["torch"]] == ["devices"]
