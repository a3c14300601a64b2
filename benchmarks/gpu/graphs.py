"""Decoding steps captured once and replayed: right in every step, and how much of a step's time was the host's.

Axes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``D`` head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit.numerics import numerics_for
from benchmarks.gpu.lines import Line
from benchmarks.gpu.place import Array, Place

_CAUSAL = ak.Mask.causal()
_LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {"layout": "contiguous", "max_length": 600},
    "pages of 16": {"layout": "paged", "max_length": 600, "page_size": 16},
}


def replayed(place: Place) -> Iterator[Line]:
    """Capture a step of two layers, and replay it after each of many others has begun."""
    for name, layout in _LAYOUTS.items():
        for codec in ("native", "int8") if place.is_gpu else ("native",):  # NumPy's encoding is not captured
            stack = _Stack(place, layout, codec)
            worst = max(stack.replay() for _ in range(4 if place.tiny else 40))
            taken = place.seconds(stack.eagerly, stack.launch)
            numbers = {"error / bound": worst, "eager / replayed": taken[0] / taken[1]}
            yield Line("graphs", f"{name}, {codec}", "right" if worst <= 1 else "wrong", numbers)


class _Stack:
    """Two layers that decode; the arrays that captured work reads and writes stay where they are."""

    def __init__(self, place: Place, layout: dict[str, Any], codec: str) -> None:
        self.place, self.backend = place, _capturing(place)
        sizes = {"num_layers": 2, "batch_size": 2, "num_kv_heads": 2, "head_dim": 32 if place.tiny else 128}
        self.cache = ak.make_cache(ak.KVCacheConfig(**sizes, **layout, codec=codec), backend=self.backend)
        self.rng = np.random.default_rng(0)
        self.inputs = [[self.backend.from_numpy(self._numbers(heads)) for heads in (4, 2, 2)] for _ in range(2)]
        self.found: list[Array] = []
        for layer in self.cache:
            layer.append(*(self.backend.from_numpy(self._numbers(2, 150)) for _ in range(2)))
        self.step = self.cache.begin_step()
        self._work(self.step)  # compiles what has to be, before anything is captured
        self.launch = _captured(self.backend, lambda: self._work(self.step))

    def replay(self) -> float:
        """Begin a step, replay it with new numbers; gives the worst error in units of its bound."""
        for arrays in self.inputs:
            for array in arrays:
                array[...] = self.backend.from_numpy(self._numbers(array.shape[1]))
        if self.cache.begin_step() is not self.step:
            return np.inf
        self.launch()
        return max(self._error(layer) for layer in range(2))

    def eagerly(self) -> None:
        """Launch the work of the step from Python."""
        self._work(self.step)

    def _work(self, step: ak.Step) -> None:
        self.found = []
        for layer, (query, key, value) in zip(step, self.inputs, strict=True):
            layer.append(key, value)
            self.found.append(layer.attend(query, mask=_CAUSAL))

    def _error(self, layer: int) -> float:
        key, value = map(self.backend.to_numpy, self.cache[layer].read())
        query = self.backend.to_numpy(self.inputs[layer][0])
        truth = reference.attention(query, key, value, mask=_CAUSAL)
        bound = truth.tolerance(numerics_for("strict-fp32+sequential", "float32"))
        error = np.abs(self.backend.to_numpy(self.found[layer]) - truth.output)
        return float((error / bound.output).max())

    def _numbers(self, heads: int, tokens: int = 1) -> np.ndarray[Any, Any]:
        shape = (2, heads, tokens, self.cache.config.head_dim)
        return self.rng.standard_normal(shape).astype(np.float32)


def _capturing(place: Place) -> Any:
    """Give a backend whose launches can be captured."""
    if place.is_gpu:
        return ak.get_backend(place.backend)
    from attnkit_cupy.backend import EmulatedBackend
    from attnkit_cupy.emulator import CapturingRuntime

    backend = EmulatedBackend()
    backend.runtime = CapturingRuntime(place.runtime)
    return backend


def _captured(backend: Any, work: Callable[[], None]) -> Callable[[], None]:
    """Capture work; gives what replays it."""
    if backend.name != "cupy":
        with backend.runtime.capture() as graph:
            work()
        return graph.launch
    import cupy

    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    cupy.cuda.Device().synchronize()
    with cupy.cuda.using_allocator(pool.malloc), stream:
        work()  # fills the pool: nothing may be allocated by CUDA while work is captured
        stream.synchronize()
        stream.begin_capture()
        work()
        graph = stream.end_capture()

    return partial(_launch, graph, stream, pool)


def _launch(graph: Any, stream: Any, pool: Any) -> None:
    """Replay a graph after the work that is queued, and before what comes; the pool, where its arrays lie, is held."""
    import cupy

    del pool
    current = cupy.cuda.get_current_stream()
    stream.wait_event(current.record())
    graph.launch(stream)
    current.wait_event(stream.record())
