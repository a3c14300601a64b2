"""NumpyBackend: what it can do, which path takes which request, and how it stores a cache.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from attnkit import AttentionOutput, AttentionRequest, Backend, Capabilities, Operands, Pages, Plan, Reason, SlotTable
from attnkit_numpy import decode, dense, storage, tiled
from attnkit_numpy.layout import Array, dtype_of
from attnkit_numpy.repair import Call, Run, is_finite, repair
from attnkit_numpy.sources import Keys, Source, keys_in

_PATHS: dict[str, Callable[[AttentionRequest], Run]] = {"tiled": tiled.plan, "decode": decode.plan, "dense": dense.plan}

# Where the paths cross, in microseconds a call (best of many; two cores with AVX2, D = 64, float32, causal):
#
#   H   K   T     S      tiled  decode  dense
#   8   8   8     8        720     230    120
#   8   8   32    32       840       -    250    calls to Python outweigh the work
#   8   8   128   128     3200       -   1900
#   8   8   256   256     4600       -   4800    two threads outweigh them
#   8   8   16    1024    2250    2500   1240
#   8   8   16    4096   10500   11800  12800
#   9   3   1     100      600      50     80
_DENSE_SCORES = 2**18  # H * T * S
_DECODE_ROWS = 16  # H / K * T

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

    def unsupported(self, request: AttentionRequest, path: str | None = None) -> list[Reason]:
        """Give every reason against a request; of the paths, only ``decode`` adds one: it takes few rows."""
        reasons = super().unsupported(request)
        rows = request.group * request.query_length
        if path == "decode" and rows > decode.MOST_ROWS:
            most = f"at most {decode.MOST_ROWS} for group * query_length"
            reasons.append(Reason("path", "query_length", most, str(rows), "fine on numpy:tiled"))
        return reasons

    def preference(self, request: AttentionRequest) -> tuple[str, ...]:
        """Give the paths, the fastest first.

        It never looks at the batch, so that a sequence takes the same path alone and in any batch.
        """
        if request.query_length == 1:
            return "decode", "tiled", "dense"
        if request.num_heads * request.query_length * request.key_length <= _DENSE_SCORES:
            return "dense", "tiled", "decode"
        if request.group * request.query_length <= _DECODE_ROWS:
            return "decode", "tiled", "dense"
        return "tiled", "decode", "dense"

    def plan(self, request: AttentionRequest, path: str) -> Plan:
        """Bind a request to one path, and to the repair of what hidden NaN and infinity did to its result."""
        attend = _PATHS[path](request)

        @np.errstate(all="ignore")
        def run(query: Array, key: Keys, value: Keys, operands: Operands) -> AttentionOutput:
            if not query.size:
                return _nothing(query, value, request)
            arrays = np.asarray(query), _plain(key), _plain(value)
            found = attend(*arrays, operands)
            if not is_finite(found.output):
                whole = [keys.whole() if isinstance(keys, Source) else keys for keys in arrays[1:]]
                found = repair(found, attend, Call(arrays[0], whole[0], whole[1], operands, request))
            return found

        return Plan(path, run)

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Give zeros; the system hands their memory out as it is first written."""
        return np.zeros(shape, dtype_of(dtype))

    @np.errstate(all="ignore")
    def write(self, plane: Array, slots: Array, tokens: Array) -> None:
        """Store tokens in slots; what overflows the plane's element type becomes infinite, without a warning."""
        store = storage.scatter if storage.is_scattered(slots) else super().write
        store(plane, slots, tokens)

    def gather(self, plane: Array, slots: Array) -> Array:
        """Copy slots ``[B, n]`` of a plane out, ``[B, K, n, F]``; a negative slot gives zeros."""
        return storage.gather(plane, slots)

    def attend_pages(
        self, query: Array, pages: Pages, table: SlotTable, operands: Operands, plan: Plan
    ) -> AttentionOutput:
        """Attend over pages: views of them where there are any, else a copy, unless decoding reads where they lie."""
        return plan.run(query, *keys_in(pages, table, self, in_place=plan.path == "decode"), operands)

    def from_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    def to_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)


def _plain(keys: Keys) -> Any:
    """Give keys without what a subclass of arrays adds; sources, which the decode path alone is given, stay."""
    return keys if isinstance(keys, Source) else np.asarray(keys)


def _nothing(query: Array, value: Keys, request: AttentionRequest) -> AttentionOutput:
    """Give the result of a call without queries."""
    shape = query.shape[:3]
    lse = np.empty(shape, request.accumulate) if request.lse else None
    return AttentionOutput(np.empty((*shape, value.shape[3]), query.dtype), lse)
