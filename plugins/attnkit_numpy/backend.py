"""NumpyBackend: what it can do, which path takes which request, and how it stores a cache.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Backend, Capabilities, Operands, Plan
from attnkit_numpy import dense
from attnkit_numpy.repair import Run, is_finite, repair

Array = np.ndarray[Any, Any]
_PATHS: dict[str, Run] = {"dense": dense.attend}

_CAPABILITIES = Capabilities(
    libraries=frozenset({"numpy"}),
    devices=frozenset({"cpu"}),
    dtypes=frozenset({"float16", "bfloat16", "float32", "float64"}),
    gqa=True,
    value_dim=True,
    window=True,
    prefix=True,
    chunked=True,
    documents=True,
    dense=True,
    bias=True,
    alibi=True,
    softcap=True,
    sinks=True,
    lengths=True,
    offsets=True,
    lse=True,
    kv_dtype=True,
    poison="masked",
    deterministic=True,
    batch_invariant=True,
    numerics={"float64": "float64", "float32": "strict-fp32", "float16": "fp32P-16", "bfloat16": "fp32P-16"},
)


class NumpyBackend(Backend):
    """The first-party backend for NumPy arrays."""

    name: ClassVar[str] = "numpy"
    paths: ClassVar[tuple[str, ...]] = tuple(_PATHS)

    def capabilities(self) -> Capabilities:
        """Declare everything but gradients."""
        return _CAPABILITIES

    def attention(
        self, query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest
    ) -> AttentionOutput:
        """Compute one call on the path that it prefers."""
        return self.plan(request, self.preference(request)[0]).run(query, key, value, operands)

    def plan(self, request: AttentionRequest, path: str) -> Plan:
        """Bind a request to one path, and to the repair of what hidden NaN and infinity did to its result."""
        attend = _PATHS[path]
        dtype = None if request.dtype == request.accumulate else self._dtype(request.dtype)

        @np.errstate(all="ignore")
        def run(query: Array, key: Array, value: Array, operands: Operands) -> AttentionOutput:
            arrays = np.asarray(query), np.asarray(key), np.asarray(value)
            found = attend(*arrays, operands, request)
            if not is_finite(found.output):
                found = repair(found, attend, *arrays, operands, request)
            return found if dtype is None else AttentionOutput(found.output.astype(dtype), found.lse)

        return Plan(path, run)

    def from_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    def to_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    @staticmethod
    def _dtype(name: str) -> np.dtype[Any]:
        import ml_dtypes  # registers bfloat16 with NumPy

        return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
