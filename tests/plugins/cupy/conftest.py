"""What tests of the CuPy plug-in share: where its kernels can run here, random calls, and the oracle's verdict.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import attnkit as ak
from attnkit import reference
from attnkit.call import describe_call, gather_options
from attnkit.numerics import numerics_for
from attnkit_cupy import raw
from attnkit_cupy.availability import why_not
from attnkit_cupy.emulator import EmulatedRuntime, EmulatorConfig
from attnkit_cupy.runtime import Runtime

_RUNTIMES: dict[EmulatorConfig, EmulatedRuntime] = {}

# NVRTC is called through CuPy, which needs no GPU for it; later architectures take the same lines as sm_80.
_TARGETS = ["emulated"]
_TARGETS += ["ptx-75", "ptx-80"] if find_spec("cupy") else []
_TARGETS += ["cupy"] if why_not() is None else []


def make_runtime(**changed: Any) -> EmulatedRuntime:
    """Give the emulator that tests use: warps run far ahead of one another, copies land early or late.

    Keywords are fields of ``EmulatorConfig``. Runtimes are shared, and so are the kernels that they have loaded.
    """
    config = EmulatorConfig(**{"schedule": "priority", "copies": "mixed", "seed": 1, "workers": 1, **changed})
    return _RUNTIMES.setdefault(config, EmulatedRuntime(config))


@pytest.fixture(scope="session")
def runtime_of() -> Callable[..., EmulatedRuntime]:
    return make_runtime


@pytest.fixture
def runtime() -> EmulatedRuntime:
    return make_runtime()


@pytest.fixture(params=["priority-mixed-1", "priority-mixed-2", "random-eager-3", "greedy-lazy-0"])
def any_schedule(request: pytest.FixtureRequest) -> EmulatedRuntime:
    """Give emulators that order threads and copies differently: results are the same, or the kernel has a race."""
    schedule, copies, seed = request.param.split("-")
    return make_runtime(schedule=schedule, copies=copies, seed=int(seed))


@pytest.fixture(params=_TARGETS)
def target(request: pytest.FixtureRequest) -> Runtime:
    """Give each runtime that there is here: the emulator, the interpreter of NVRTC's PTX, a GPU."""
    name, _, arch = request.param.partition("-")
    if name == "emulated":
        return make_runtime()
    if name == "ptx":
        from attnkit_cupy.ptx.runtime import PtxRuntime

        return PtxRuntime(int(arch))
    from attnkit_cupy.cuda.runtime import CupyRuntime

    return CupyRuntime()


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> None:
    """The oracle's products are small, and sanitizers know nothing of OpenBLAS's threads."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
EXACT_WEIGHTS = {"float32": "strict-fp32", "float16": "fp32P-16", "bfloat16": "fp32P-16"}
"""Numerics of kernels that keep the weights in float32."""


class Case(NamedTuple):
    """Arguments of one call: ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]`` and the keywords."""

    arrays: tuple[Any, Any, Any]
    options: dict[str, Any]

    def holding(self, *arrays: Any) -> Case:
        return Case((arrays[0], arrays[1], arrays[2]), self.options)


def draw(seed: int, sizes: tuple[int, ...], dtype: str = "float32", kind: str = "normal", **options: Any) -> Case:
    """Draw a call of sizes ``B, H, K, T, S, D, E``; options are keywords of ``attention``."""
    rng, (batch, heads, kv_heads, rows, keys, head_dim, value_dim) = np.random.default_rng(seed), sizes
    query = rng.standard_normal((batch, heads, rows, head_dim))
    key, value = (rng.standard_normal((batch, kv_heads, keys, size)) for size in (head_dim, value_dim))
    query, key = {"normal": (query, key), "peaky": (6 * query, key), "huge": (30 * query, 30 * key)}[kind]
    arrays = tuple(array.astype(DTYPES[dtype]) for array in (query, key, value))
    return Case((arrays[0], arrays[1], arrays[2]), options)


def attend(runtime: Runtime, case: Case, kernel: str | None = None) -> ak.AttentionOutput:
    """Run a call on the raw path."""
    query, key, value = case.arrays
    request, operands = describe_call(query, key, value, gather_options(**case.options), True)
    assert raw.refusals(request) == []
    stored = raw.Stored.of_arrays(key, value, runtime)
    return raw.attend(runtime, request, query, stored, operands, kernel)


def check(case: Case, found: ak.AttentionOutput, numerics: dict[str, str] = EXACT_WEIGHTS) -> None:
    """Compare with the oracle, within the error budget; sums may be taken one key after the other."""
    dtype = case.arrays[0].dtype
    truth = reference.attention(*case.arrays, **case.options)
    profile = numerics[dtype.name] + ("" if "+" in numerics[dtype.name] else "+sequential")
    bound = truth.tolerance(numerics_for(profile, dtype.name))
    assert found.output.dtype == dtype
    assert found.output.shape == truth.output.shape
    assert found.lse is not None
    assert found.lse.dtype == np.float32
    empty = truth.lse == -np.inf
    np.testing.assert_array_equal(found.lse[empty], -np.inf)
    np.testing.assert_array_equal(found.output[~truth.problem.shown.any(axis=-1)].astype(np.float64), 0)
    assert np.all(np.abs(found.output.astype(np.float64) - truth.output) <= bound.output)
    assert np.all(np.abs(found.lse[~empty].astype(np.float64) - truth.lse[~empty]) <= bound.lse[~empty])


def assert_same_bits(one: ak.AttentionOutput, other: ak.AttentionOutput) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.tobytes() == b.tobytes()


class Calls:
    """Under importlib mode tests cannot import this file."""

    DTYPES = DTYPES
    Case = Case
    draw = staticmethod(draw)
    attend = staticmethod(attend)
    check = staticmethod(check)
    assert_same_bits = staticmethod(assert_same_bits)


@pytest.fixture(scope="session")
def calls() -> type[Calls]:
    return Calls
