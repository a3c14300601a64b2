"""Real CuPy arrays whose memory is the host's drive the host code up to, and through, the emulated launch.

Whatever launches a kernel of CuPy's own raises here, as there is no device: the way to a launch must not.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.call import NO_OPTIONS, describe_call
from attnkit.numerics import numerics_for
from attnkit.selection import select
from attnkit_cupy.backend import CAPABILITIES, CupyBackend
from attnkit_cupy.emulator import EmulatedRuntime

cupy = pytest.importorskip("cupy", reason="the arrays are CuPy's")

LIMITS: dict[str, dict[str, int]] = {
    "contiguous": {"max_length": 32},
    "paged": {"max_length": 32, "page_size": 4},
    "ring": {"window": 8, "max_append": 5},
}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(11)


def to_host(array: Any) -> Any:
    """Look at a CuPy array as a NumPy array."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    length = 1 + sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)) // array.itemsize
    memory = (ctypes.c_char * (length * array.itemsize)).from_address(array.data.ptr)
    flat = np.frombuffer(memory, np.uint8).view(array.dtype)
    return np.lib.stride_tricks.as_strided(flat, array.shape, array.strides)


def to_cupy(array: Any) -> Any:
    """Give a CuPy array whose memory is that of a NumPy array."""
    memory = cupy.cuda.UnownedMemory(array.ctypes.data, max(array.nbytes, 1), array, 0)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0), strides=array.strides)


class HostCupy:
    """CuPy, but that copies between host and device are to and from the host."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cupy, name)

    def asarray(self, array: Any, dtype: Any = None) -> Any:
        if isinstance(array, cupy.ndarray):
            return array if dtype is None else array.astype(dtype, copy=False)
        return to_cupy(np.array(array, dtype))

    def asnumpy(self, array: Any) -> Any:
        return np.array(to_host(array))

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return to_cupy(np.zeros(shape, dtype))


class HostRuntime(EmulatedRuntime):
    xp: Any = HostCupy()


def allocate(size: int) -> Any:
    memory = np.full(max(size, 1), 0xFF, np.uint8)
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, 0), 0)


@pytest.fixture
def backend(monkeypatch: Any, runtime: EmulatedRuntime) -> Iterator[CupyBackend]:
    monkeypatch.setattr("attnkit.arrays._asked_device", lambda array: "cuda:0")
    with cupy.cuda.using_allocator(allocate):
        yield CupyBackend(HostRuntime(runtime.config))


def draw(dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


def check(found: ak.AttentionOutput, arrays: list[Any], **options: Any) -> None:
    assert isinstance(found.output, cupy.ndarray)
    truth, dtype = reference.attention(*arrays, **options), arrays[0].dtype.name
    bound = truth.tolerance(numerics_for(CAPABILITIES.numerics[dtype], dtype))
    assert found.output.dtype == arrays[0].dtype
    assert np.all(np.abs(to_host(found.output).astype(np.float64) - truth.output) <= bound.output)
    assert found.lse is not None
    lse, empty = to_host(found.lse), truth.lse == -np.inf
    np.testing.assert_array_equal(lse[empty], -np.inf)
    assert np.all(np.abs(lse[~empty] - truth.lse[~empty]) <= bound.lse[~empty])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_views_of_a_model_are_read_where_they_lie(backend: CupyBackend, dtype: Any) -> None:
    (packed,) = draw(dtype, (2, 20, 8, 16))  # [B, T, H + K + K, D], as one projection gives it
    views = [packed[:, :, part].transpose(0, 2, 1, 3) for part in (slice(0, 4), slice(4, 6), slice(6, 8))]
    given = to_cupy(packed).transpose(0, 2, 1, 3)
    mask = ak.Mask.causal()
    found = ak.attention_with_lse(given[:, :4], given[:, 4:6], given[:, 6:], mask=mask, backend=backend)
    check(found, views, mask=mask)


def test_options_go_along_from_host_and_device(backend: CupyBackend) -> None:
    arrays = draw(np.float32, (2, 4, 6, 16), (2, 2, 9, 16), (2, 2, 9, 8))
    options: dict[str, Any] = {
        "bias": RNG.standard_normal((1, 4, 6, 9)).astype(np.float32),
        "alibi": RNG.random(4).astype(np.float32),
        "sinks": RNG.random(4).astype(np.float32),
    }
    lengths, mask = np.array([9, 5]), ak.Mask.window(4)
    on_device = {name: to_cupy(array) for name, array in options.items()}
    for numbers in (lengths, to_cupy(lengths)):
        given = [to_cupy(array) for array in arrays]
        found = ak.attention_with_lse(*given, **on_device, kv_lengths=numbers, mask=mask, backend=backend)
        check(found, arrays, **options, kv_lengths=lengths, mask=mask)


@pytest.mark.parametrize("layout", ["contiguous", "paged", "ring"])
@pytest.mark.parametrize("codec", ["native", "int8"])
def test_a_cache_is_attended_where_it_lies(backend: CupyBackend, layout: Any, codec: str, monkeypatch: Any) -> None:
    sizes: dict[str, Any] = {"batch_size": 2, "num_kv_heads": 2, "head_dim": 16, "dtype": "float16"}
    config = ak.KVCacheConfig(**sizes, layout=layout, key_codec=codec, value_codec=codec, **LIMITS[layout])
    encode = ak.Codec.encode

    def encode_on_host(codec: ak.Codec, tokens: Any, dtype: str) -> tuple[Any, ...]:
        if isinstance(tokens, np.ndarray):
            return encode(codec, tokens, dtype)
        return tuple(map(to_cupy, encode(codec, to_host(tokens), dtype)))

    monkeypatch.setattr(ak.Codec, "encode", encode_on_host)
    cache, twin = ak.make_cache(config, backend=backend), ak.make_cache(config, backend="numpy")
    query, key, value = draw(np.float16, (2, 4, 3, 16), (2, 2, 5, 16), (2, 2, 5, 16))
    for step in (5, 1, 5):
        cache[0].append(to_cupy(key[:, :, :step].copy()), to_cupy(value[:, :, :step].copy()))
        twin[0].append(key[:, :, :step], value[:, :, :step])
    monkeypatch.setattr(backend, "gather", None)  # nothing is copied out
    mask = ak.Mask.window(8)
    found, wanted = (
        each[0].attend_with_lse(array, mask=mask) for each, array in ((cache, to_cupy(query)), (twin, query))
    )
    np.testing.assert_allclose(to_host(found.output).astype(np.float32), wanted.output.astype(np.float32), atol=4e-3)
    np.testing.assert_allclose(to_host(found.lse), wanted.lse, rtol=1e-3)


def test_what_was_stored_is_read_back(backend: CupyBackend) -> None:
    plane = backend.allocate((2, 10, 4), "bfloat16")
    slots, (tokens,) = np.array([[3, 1, -1], [8, 9, 2]]), draw(BFLOAT16, (2, 2, 3, 4))
    backend.write(plane, slots, to_cupy(tokens))
    found = backend.to_numpy(backend.gather(plane, slots))
    np.testing.assert_array_equal(found[slots[:, None].repeat(2, 1) >= 0], tokens[slots[:, None].repeat(2, 1) >= 0])
    assert not found[0, :, 2].any()


def test_slots_are_sent_once_for_keys_and_values(backend: CupyBackend, monkeypatch: Any) -> None:
    sent, asarray = [], HostCupy.asarray
    monkeypatch.setattr(HostCupy, "asarray", lambda self, *rest: sent.append(rest) or asarray(self, *rest))
    plane, slots = backend.allocate((2, 10, 4), "float16"), np.array([[3, 1], [8, 9]])
    tokens = to_cupy(draw(np.float16, (2, 2, 2, 4))[0])
    for _ in range(4):
        backend.write(plane, slots, tokens)
    assert len(sent) == 1


def test_arrays_on_two_devices_are_refused(backend: CupyBackend, monkeypatch: Any) -> None:
    query, key, value = (to_cupy(array) for array in draw(np.float32, (1, 1, 2, 8), (1, 1, 2, 8), (1, 1, 2, 8)))
    monkeypatch.setattr("attnkit.checks._share_place", lambda *arrays: False)
    monkeypatch.setattr("attnkit.checks.device_of", lambda array: "cuda:1" if array is value else "cuda:0")
    with pytest.raises(ak.DeviceError, match="query, key, value must lie on one device, got cuda:0, cuda:0, cuda:1"):
        ak.attention(query, key, value, backend=backend)


def test_float64_is_left_to_the_dense_path(backend: CupyBackend) -> None:
    arrays = [to_cupy(array) for array in draw(np.float64, (1, 1, 2, 8), (1, 1, 2, 8), (1, 1, 2, 8))]
    request, _ = describe_call(*arrays, NO_OPTIONS, False)
    assert select(request, backend).name == "cupy:dense"
    (reason,) = backend.unsupported(request, "raw")
    assert (reason.code, reason.field, reason.hint) == ("path", "dtype", "fine on cupy:dense")
