"""The backends over their runtimes: what is declared, which path takes what, and how pages are attended.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit_cupy import raw
from attnkit_cupy.backend import CAPABILITIES, CudaBackend, EmulatedBackend, knows_bfloat16
from attnkit_cupy.emulator import EmulatorConfig
from attnkit_cupy.stored import Stored

RNG = np.random.default_rng(5)


@pytest.fixture
def backend() -> EmulatedBackend:
    return EmulatedBackend(EmulatorConfig(workers=1, schedule="priority", copies="mixed"))


def arrays(head_dim: int = 8, dtype: Any = np.float32, keys: int = 6) -> list[Any]:
    shapes = (1, 2, 3, head_dim), (1, 1, keys, head_dim), (1, 1, keys, head_dim)
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


def reasons_of(caught: Any) -> set[tuple[str, str]]:
    return {(reason.code, reason.field) for why in caught.value.reasons.values() for reason in why}


def test_gradients_are_refused_and_nothing_else() -> None:
    declared = {name: getattr(CAPABILITIES, name) for name in CAPABILITIES.__slots__}
    assert [name for name, value in declared.items() if value is False] == ["grad", "batch_invariant"]


@pytest.mark.parametrize(
    ("given", "reasons"),
    [
        (arrays(dtype=np.float64), {("dtypes", "dtype")}),
        (arrays(head_dim=257), {("head_dims", "head_dim")}),
        (arrays(head_dim=300, dtype=np.float64), {("dtypes", "dtype"), ("head_dims", "head_dim")}),
    ],
)
def test_what_no_kernel_takes_is_refused_once(backend: EmulatedBackend, given: list[Any], reasons: Any) -> None:
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*given, backend=backend)
    assert reasons_of(caught) == reasons


def test_limits_of_the_kernels_alone_are_told_too(backend: EmulatedBackend) -> None:
    mask = ak.Mask.chunked(2)
    for size in (3, 4, 5, 6):
        mask = mask & ak.Mask.chunked(size)
    with pytest.raises(ak.UnsupportedError) as caught:
        ak.attention(*arrays(), mask=mask, backend=backend)
    assert reasons_of(caught) == {("path", "mask.chunks")}


def test_attention_can_be_asked_directly(backend: EmulatedBackend) -> None:
    given = arrays()
    with ak.trace() as calls:
        wanted = ak.attention(*given, backend=backend)
    found = backend.attention(*given, ak.Operands(3, 6), calls[0].request)
    assert found.output.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("codec", ["native", "int4/4", "fp8"])
def test_pages_are_attended_without_a_copy(backend: EmulatedBackend, monkeypatch: Any, dtype: str, codec: str) -> None:
    sizes: dict[str, Any] = {"batch_size": 2, "num_kv_heads": 1, "head_dim": 8, "page_size": 2, "max_length": 16}
    config = ak.KVCacheConfig(**sizes, dtype=dtype, layout="paged", key_codec=codec, value_codec=codec)
    numpy_type = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    cache, twin = ak.make_cache(config, backend=backend), ak.make_cache(config, backend="numpy")
    key, value, query = (RNG.standard_normal((2, heads, 7, 8)).astype(numpy_type) for heads in (1, 1, 2))
    for each in (cache, twin):
        for part in (slice(0, 3), slice(3, 4), slice(4, 7)):
            each[0].append(key[:, :, part], value[:, :, part], lengths=np.array([part.stop - part.start, 1]))
    monkeypatch.setattr(CudaBackend, "gather", None)
    found, wanted = (each[0].attend(query[:, :, -3:], mask=ak.Mask.causal()) for each in (cache, twin))
    error = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
    assert error < (1e-6 if dtype == "float32" else 2e-2)


def test_a_query_of_another_library_reads_pages_too(backend: EmulatedBackend) -> None:
    torch = pytest.importorskip("torch", reason="the query is torch's")
    config = ak.KVCacheConfig(num_kv_heads=1, head_dim=8, layout="paged", page_size=2, max_length=16)
    cache, (query, key, value) = ak.make_cache(config, backend=backend), arrays()
    cache[0].append(torch.from_numpy(key[:, :, :5].copy()), torch.from_numpy(value[:, :, :5].copy()))
    found = cache[0].attend(torch.from_numpy(query), mask=ak.Mask.causal())
    assert isinstance(found, torch.Tensor)
    assert np.array_equal(found.numpy(), cache[0].attend(query, mask=ak.Mask.causal()))


def test_storage_is_zeros_of_every_element_type(backend: EmulatedBackend) -> None:
    for dtype in ("float16", "bfloat16", "float32", "int8", "uint8"):
        plane = backend.allocate((1, 2, 3), dtype)
        assert (plane.dtype.name, plane.shape, plane.astype(np.float32).any()) == (dtype, (1, 2, 3), np.False_)


def test_arrays_are_copied_in_and_out(backend: EmulatedBackend) -> None:
    array = np.ones(3, np.float32)
    for copy in (backend.from_numpy(array), backend.to_numpy(array)):
        assert not np.shares_memory(copy, array)
        np.testing.assert_array_equal(copy, array)


def test_the_environment_sets_the_schedule(monkeypatch: Any) -> None:
    monkeypatch.setenv("ATTNKIT_EMULATOR", "schedule=random seed=4")
    runtime: Any = EmulatedBackend().runtime
    assert (runtime.config.schedule, runtime.config.seed) == ("random", 4)


def test_a_plan_is_bound_to_its_request(backend: EmulatedBackend, monkeypatch: Any) -> None:
    met: list[Any] = []
    attend = raw.attend
    monkeypatch.setattr(raw, "attend", lambda *rest: met.append(rest) or attend(*rest))
    ak.attention(*arrays(), backend=backend, scale=0.5)
    ((runtime, request, _, stored, operands),) = met
    assert runtime is backend.runtime
    assert (request.scale, operands.key_length) == (0.5, 6)
    assert isinstance(stored, Stored)


@pytest.mark.parametrize(("version", "known"), [("13.6.0", False), ("14.0.0rc1", True), ("14.2.0", True)])
def test_bfloat16_needs_a_new_cupy(version: str, known: bool) -> None:
    assert knows_bfloat16(version) == known
