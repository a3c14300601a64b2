"""Calls of many threads at once, and settings that are not ours to change (S3)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import attnkit as ak


def at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do each work in a thread of its own, all starting together."""
    barrier = threading.Barrier(len(works), timeout=60)

    def start(work: Callable[[], Any]) -> Any:
        barrier.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(start, works))


@pytest.mark.fault("cupy/cupy#6574")
def test_first_calls_of_many_threads(attend, lab) -> None:
    """Threads that launched a kernel for the first time together crashed in the cache of compiled code."""
    arrays = lab.draw(1, 3, 2, 77, kv_heads=1, head_dim=23)  # sizes of no other test, so that nothing is cached
    options = {"mask": ak.Mask.causal(), "kv_lengths": 71}
    found = at_once([lambda: attend(*arrays, **options)] * 8)
    expected = attend.checked(*arrays, **options)
    for output, lse in found:
        lab.same_bits(output, expected.output)
        lab.same_bits(lse, expected.lse)


FIRST = """
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy, torch

x = numpy.linspace(-1, 1, 96, dtype="float32").reshape(1, 2, 6, 8)
arrays = [x, torch.tensor(x)] * 4
barrier = threading.Barrier(8, timeout=60)

def first(x):
    barrier.wait()
    import attnkit
    return numpy.asarray(attnkit.attention(x, x, x)).tobytes()

with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(first, arrays))
assert len(set(found[::2])) == len(set(found[1::2])) == 1
"""


@pytest.mark.fault("cupy/cupy#6574")
def test_first_calls_of_a_process() -> None:
    """The same before attnkit is even imported."""
    subprocess.run([sys.executable, "-W", "error", "-c", FIRST], check=True, timeout=120)


@pytest.mark.fault("flashinfer-ai/flashinfer#4476")
def test_calls_of_one_shape_in_many_threads(attend, lab) -> None:
    """Scratch memory was shared by all calls of a shape, and concurrent ones overwrote each other's inputs."""
    inputs = [lab.draw(2, 4, 3, 65, kv_heads=2, seed=number) for number in range(4)]
    options = {"mask": ak.Mask.causal() & ak.Mask.dense(lab.draw(1, 1, 3, 65)[0][..., :1] < 2)}
    expected = [attend(*arrays, **options) for arrays in inputs]
    found = at_once([lambda arrays=arrays: [attend(*arrays, **options) for _ in range(25)] for arrays in inputs])
    for results, (output, lse) in zip(found, expected, strict=True):
        for result in results:
            lab.same_bits(result.output, output)
            lab.same_bits(result.lse, lse)


SETTINGS = """
import os, random, signal, sys, threading, warnings

import ml_dtypes, numpy, torch
from torch import backends

def settings():
    yield numpy.geterr(), numpy.get_printoptions(), repr(numpy.random.get_state())
    yield random.getstate(), list(warnings.filters), dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT)
    yield sys.getrecursionlimit(), sys.getswitchinterval(), threading.excepthook
    yield torch.get_default_dtype(), torch.get_default_device(), torch.get_rng_state().tolist()
    yield torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_float32_matmul_precision()
    yield torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()
    yield torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield torch.utils.deterministic.fill_uninitialized_memory, torch.is_warn_always_enabled()
    yield torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    yield [getattr(backends.cuda, f"{kind}_sdp_enabled")() for kind in ("flash", "mem_efficient", "math", "cudnn")]
    yield backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.deterministic
    yield backends.cudnn.benchmark, backends.mkldnn.enabled, torch.cuda.is_initialized()

before = list(settings())
import attnkit as ak
loaded = {name: ak.get_backend(name) for name in ("numpy", "torch")}
assert list(settings()) == before, "loading"
x = numpy.linspace(-1, 1, 96, dtype="float32").reshape(1, 2, 6, 8)
for path in sys.argv[1:]:
    ak.attention(*(loaded[path.partition(":")[0]].from_numpy(x) for _ in range(3)), backend=path)
    assert list(settings()) == before, path
"""


@pytest.mark.fault("seal-rg/recurrent-pretraining#30")
def test_global_settings_stay_as_they_are(paths) -> None:
    """Importing a package switched flags of a process, and a model that had nothing to do with it failed."""
    subprocess.run([sys.executable, "-W", "error", "-c", SETTINGS, *paths], check=True, timeout=120)
