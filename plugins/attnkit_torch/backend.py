"""TorchBackend: what it can do, which path takes which request, and how it stores a cache.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnkit import AttentionOutput, AttentionRequest, Backend, Capabilities, Operands, Pages, Plan, Reason, SlotTable
from attnkit_torch import decode, dense, flex, sdpa, storage, tiled
from attnkit_torch.choice import preference
from attnkit_torch.place import as_array, as_tensor, has_arrays, place
from attnkit_torch.sources import Keys, keys_in
from attnkit_torch.vjp import vjp

Run = Callable[[Tensor, Any, Any, Operands], AttentionOutput]


class Path(NamedTuple):
    """How a path plans a request, what it leaves to others, and what there is to know about its plan."""

    plan: Callable[[AttentionRequest], Run]
    refusals: Callable[[AttentionRequest], list[Reason]]
    details: Callable[[AttentionRequest], Mapping[str, Any]] = lambda _request: {}


_PATHS = {
    "sdpa": Path(sdpa.plan, sdpa.refusals),
    "tiled": Path(tiled.plan, tiled.refusals),
    "decode": Path(decode.plan, decode.refusals),
    "flex": Path(flex.plan, flex.refusals, flex.details),
    "dense": Path(dense.plan, dense.refusals),
}

_CAPABILITIES = Capabilities(
    libraries=frozenset({"torch"}),
    devices=frozenset({"cpu", "cuda", "rocm", "metal", "oneapi"}),
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
    grad=True,
    poison="padding",
    deterministic=True,
    batch_invariant=False,
    # Torch's fused kernel adds one key after the other.
    numerics={
        "float64": "float64+sequential",
        "float32": "strict-fp32+sequential",
        "float16": "fa-16",
        "bfloat16": "fa-16",
    },
)


class TorchBackend(Backend):
    """The first-party backend for torch tensors."""

    name: ClassVar[str] = "torch"
    paths: ClassVar[tuple[str, ...]] = tuple(_PATHS)

    def capabilities(self) -> Capabilities:
        """Declare everything, gradients too."""
        return _CAPABILITIES

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, operands: Operands, request: AttentionRequest
    ) -> AttentionOutput:
        """Compute one call on the first path that takes it."""
        path = next(name for name in self.preference(request) if not _PATHS[name].refusals(request))
        return self.plan(request, path).run(query, key, value, operands)

    def unsupported(self, request: AttentionRequest, path: str | None = None) -> list[Reason]:
        """Give every reason against a request, of the backend or of one path."""
        reasons = super().unsupported(request)
        return reasons if path is None else reasons + _PATHS[path].refusals(request)

    def preference(self, request: AttentionRequest) -> tuple[str, ...]:
        """Give the paths, the fastest first."""
        return preference(request)

    def plan(self, request: AttentionRequest, path: str) -> Plan:
        """Bind a request to one path; inner products are never left to autocast."""
        attend = _PATHS[path].plan(request)
        kind = torch_device(request.device)
        moves = has_arrays(request)

        def run(query: Tensor, key: Keys, value: Keys, operands: Operands) -> AttentionOutput:
            if moves:
                operands = place(operands, query)
            if not torch.is_autocast_enabled(kind):
                return attend(query, key, value, operands)
            with torch.autocast(kind, enabled=False):
                return attend(query, key, value, operands)

        return Plan(path, run, _PATHS[path].details(request))

    def from_numpy(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Copy an array to torch's default device."""
        return as_tensor(np.array(array)).to(torch.get_default_device())

    def to_numpy(self, array: Tensor) -> np.ndarray[Any, Any]:
        """Copy a tensor, without its gradient; waits for the device."""
        return as_array(array)

    def vjp(
        self, function: Callable[..., Sequence[Tensor]], arrays: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Evaluate a function and differentiate it by torch's own means."""
        return vjp(function, arrays, cotangents)

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Give zeros on torch's default device, which may be written in and out of inference mode."""
        with torch.inference_mode(False):
            return torch.zeros(*shape, dtype=getattr(torch, dtype))

    def write(self, plane: Tensor, slots: np.ndarray[Any, Any], tokens: Tensor) -> None:
        """Store tokens in slots, converted by value to the plane's element type; no gradient follows them."""
        with torch.no_grad():
            storage.write(plane, slots, tokens)

    def gather(self, plane: Tensor, slots: np.ndarray[Any, Any]) -> Tensor:
        """Copy slots ``[B, n]`` of a plane out, ``[B, K, n, F]``; a negative slot gives zeros."""
        return storage.gather(plane, slots)

    def attend_pages(
        self, query: Tensor, pages: Pages, table: SlotTable, operands: Operands, plan: Plan
    ) -> AttentionOutput:
        """Attend over pages: views of them where there are any, else a copy, unless decoding reads where they lie."""
        return plan.run(query, *keys_in(pages, table, self, in_place=plan.path == "decode"), operands)


def torch_device(device: str) -> str:
    """Give torch's name of a device's kind."""
    kind = device.partition(":")[0]
    return {"rocm": "cuda", "metal": "mps", "oneapi": "xpu"}.get(kind, kind)
