"""CudaBackend: our CUDA kernels behind the contract, on a GPU (CupyBackend) or on a CPU (EmulatedBackend).

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from attnkit import (
    AttentionOutput,
    AttentionRequest,
    Backend,
    Capabilities,
    Operands,
    Pages,
    Plan,
    Reason,
    Sizes,
    SlotTable,
    StepMirrors,
    StepTables,
    UnsupportedError,
)
from attnkit_cupy import dense, packed, raw, storage
from attnkit_cupy.emulator import EmulatedRuntime, EmulatorConfig
from attnkit_cupy.runtime import Array, Runtime
from attnkit_cupy.steps import StepSlots, StepTable, mirrored
from attnkit_cupy.stored import Stored

Run = Callable[[Array, Any, Any, Operands], AttentionOutput]

CAPABILITIES = Capabilities(
    libraries=frozenset({"numpy"}),
    devices=frozenset({"cpu"}),
    dtypes=frozenset({"float16", "bfloat16", "float32"}),
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
    batch_invariant=False,  # how many parts the keys are cut into depends on how many sequences there are
    numerics={
        "float64": "float64+sequential",
        "float32": "strict-fp32+sequential",
        "float16": "fa-16+truncating",
        "bfloat16": "fa-16+truncating",
    },
)


class CudaBackend(Backend):
    """CUDA kernels over a runtime.

    Parameters
    ----------
    runtime
        What runs them, and whose arrays they take.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._mirrors = storage.Mirrors()

    def attention(
        self, query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest
    ) -> AttentionOutput:
        """Compute one call on the first path that takes it."""
        path = next(name for name in self.preference(request) if not self.unsupported(request, name))
        return self.plan(request, path).run(query, key, value, operands)

    def unsupported(self, request: AttentionRequest, path: str | None = None) -> list[Reason]:
        """Give every reason against a request; the kernels add their own, and leave the rest to the dense path."""
        reasons = super().unsupported(request)
        if path != "raw" and self.paths != ("raw",):
            return reasons
        others = [name for name in self.paths if name != "raw"]
        hint, told = f"fine on {self.name}:{others[0]}" if others else "", _told(request, reasons)
        return reasons + [replace(reason, hint=hint) for reason in raw.refusals(request) if reason.field not in told]

    def plan(self, request: AttentionRequest, path: str) -> Plan:
        """Bind a request to one path."""
        if path == "dense":
            return Plan(path, self._on_device(lambda *call: dense.attend(request, *call)))

        def attend(query: Array, key: Any, value: Any, operands: Operands) -> AttentionOutput:
            stored = key if isinstance(key, Stored) else Stored.of_arrays(key, value, self.runtime)
            return raw.attend(self.runtime, request, query, stored, operands)

        return Plan(path, self._on_device(attend))

    def _on_device(self, attend: Run) -> Run:
        def run(query: Array, key: Any, value: Any, operands: Operands) -> AttentionOutput:
            with self.runtime.on(query):
                return attend(query, key, value, operands)

        return run

    def begin_step(self, pages: Pages, tables: StepTables, mirrors: StepMirrors | None) -> StepMirrors:
        """Write a step into arrays that last, on the stream that is current; neither host nor device waits."""
        with self.runtime.on(pages.planes[0]):
            return mirrored(self.runtime.xp, tables, mirrors)

    def attend_pages(
        self, query: Array, pages: Pages, table: SlotTable | StepTable, operands: Operands, plan: Plan
    ) -> AttentionOutput:
        """Attend over pages: the kernels read them where they lie; what cuBLAS multiplies is copied out first."""
        if plan.path != "raw":
            if isinstance(table, StepTable):
                raise UnsupportedError("a step cannot be captured:", {self.name: (_only_raw(plan.path),)})
            return super().attend_pages(query, pages, table, operands, plan)
        with self.runtime.on(pages.planes[0]):
            stored = Stored.of_pages(pages, table, self.runtime)
            return plan.run(query, stored, stored, operands)

    def attend_packed(
        self,
        query: Array,
        key: Array,
        value: Array,
        starts: tuple[Sequence[int], Sequence[int]],
        operands: Operands,
        plan: Plan,
    ) -> AttentionOutput | None:
        """Attend over packed sequences in as few launches as over one, unless padding would be most of the queries."""
        if plan.path != "raw" or not packed.is_worth_it(starts):
            return None
        with self.runtime.on(query):
            return packed.attend(self.runtime, query, key, value, starts, operands, plan)

    def write(self, plane: Array, slots: storage.IntArray | StepSlots, tokens: Array) -> None:
        """Store tokens in slots, converted by value; the host does not wait for the device."""
        with self.runtime.on(plane):
            mirror = slots.array if isinstance(slots, StepSlots) else self._mirrors.of(slots, self.runtime)
            storage.write(self.runtime, plane, mirror, tokens)

    def gather(self, plane: Array, slots: storage.IntArray) -> Array:
        """Copy slots ``[B, n]`` of a plane out, ``[B, K, n, F]``; a negative slot gives zeros."""
        with self.runtime.on(plane):
            return storage.gather(self.runtime, plane, self._mirrors.of(slots, self.runtime))


def _only_raw(path: str) -> Reason:
    hint = "call cache[layer] in place of step[layer]"
    return Reason("path", "path", "raw, which reads mirrors of the step", path, hint)


def _told(request: AttentionRequest, reasons: list[Reason]) -> set[str]:
    """Give the parts of a request of which all is said: keys that are as the queries are need no reason of theirs."""
    same = {"kv_dtype": request.kv_dtype == request.dtype, "value_dim": request.value_dim == request.head_dim}
    return {reason.field for reason in reasons} | {name for name, follows in same.items() if follows}


class EmulatedBackend(CudaBackend):
    """The kernels, run on a CPU on NumPy arrays; never chosen unless it is named."""

    name: ClassVar[str] = "cuda-emulated"
    automatic: ClassVar[bool] = False
    paths: ClassVar[tuple[str, ...]] = ("raw",)

    def __init__(self, config: EmulatorConfig | None = None) -> None:
        super().__init__(EmulatedRuntime(config or EmulatorConfig.from_environment()))

    def capabilities(self) -> Capabilities:
        """Declare what the kernels do: everything but float64, large heads and gradients."""
        return replace(CAPABILITIES, head_dims=Sizes(most=raw.MOST_FEATURES), max_key_length=2**30)

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Give zeros; the system hands their memory out as it is first written."""
        return np.zeros(shape, storage.dtype_of(dtype))

    def from_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)

    def to_numpy(self, array: Array) -> Array:
        """Copy an array."""
        return np.array(array)


class CupyBackend(CudaBackend):
    """The kernels on a GPU, on CuPy arrays; cuBLAS for what they leave."""

    name: ClassVar[str] = "cupy"
    paths: ClassVar[tuple[str, ...]] = ("raw", "dense")

    def __init__(self, runtime: Runtime | None = None) -> None:
        from attnkit_cupy.cuda.runtime import CupyRuntime  # imports CuPy

        super().__init__(CupyRuntime() if runtime is None else runtime)

    def capabilities(self) -> Capabilities:
        """Declare everything but gradients; bfloat16 where CuPy knows it."""
        dtypes = CAPABILITIES.dtypes | {"float64"}
        return replace(
            CAPABILITIES,
            libraries=frozenset({"cupy"}),
            devices=frozenset({"cuda"}),
            dtypes=dtypes if knows_bfloat16(self.runtime.xp.__version__) else dtypes - {"bfloat16"},
        )

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Give zeros on CuPy's current device."""
        return self.runtime.xp.zeros(shape, storage.dtype_of(dtype))

    def from_numpy(self, array: Array) -> Array:
        """Copy an array to CuPy's current device."""
        return self.runtime.xp.asarray(array)

    def to_numpy(self, array: Array) -> Array:
        """Copy an array to the host; waits for the device."""
        return self.runtime.xp.asnumpy(array)

    def beside(self, array: Array) -> AbstractContextManager[Any]:
        """Queue work on the stream that torch uses for a tensor."""
        from attnkit_cupy.cuda.streams import beside  # imports CuPy

        return beside(array)


def knows_bfloat16(version: str) -> bool:
    """Tell whether a version of CuPy takes the bfloat16 of ml_dtypes."""
    return int(version.partition(".")[0]) >= 14
