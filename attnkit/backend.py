"""What a plug-in implements: Backend, and what its hook returns: BackendSpec.

A backend may implement ``attention`` alone; plans, explanations, caches and benchmarks come with the base class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from attnkit.arrays import dtype_name, numpy_dtype
from attnkit.capabilities import Capabilities
from attnkit.errors import Reason, UnsupportedError
from attnkit.pages import IntArray, Pages, SlotTable, runs
from attnkit.request import AttentionRequest, Operands
from attnkit.steps import StepMirrors, StepTables

if TYPE_CHECKING:
    from attnkit.cache.base import KVCache
    from attnkit.cache.config import KVCacheConfig

Array = Any


class AttentionOutput(NamedTuple):
    """What a path gives back: output ``[B, H, T, E]`` and, where asked for, log-sum-exp ``[B, H, T]``."""

    output: Array
    lse: Array | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How one backend runs one request.

    Parameters
    ----------
    path
        Name of the path inside the backend, such as ``"tiled"``.
    run
        ``run(query, key, value, operands) -> AttentionOutput``.
    details
        What a benchmark or a bug report would like to know (tile sizes, kernel), as JSON-ready data.
    """

    path: str
    run: Callable[[Array, Array, Array, Operands], AttentionOutput]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What ``attnkit_register_backends`` returns; cheap to import, so no array library is loaded by it.

    Parameters
    ----------
    name
        Lower-case name that ``backend=`` takes.
    load
        Imports the library and gives the backend; called once, at first use.
    owns
        ``(array type, device kind)`` pairs that automatic choice may send here, such as ``("numpy.ndarray", "cpu")``;
        ``"*"`` is any device, and is less specific than a named one.
    available
        Gives ``None`` where the backend can run here, else the reason in words.
    install_hint
        The command that mends it.
    summary
        One sentence.
    paths
        The names of its paths, so that a listing need not load it; empty = not told.
    intercept
        Gives the plug-in's interceptor of calls on the arrays it owns, see ``attnkit.interception``; imports the
        library, and is called at the first call on such an array. ``None`` = there is nothing to intercept.
    """

    name: str
    load: Callable[[], Backend]
    owns: tuple[tuple[str, str], ...] = ()
    available: Callable[[], str | None] = lambda: None
    install_hint: str = ""
    summary: str = ""
    paths: tuple[str, ...] = ()
    intercept: Callable[[], Callable[..., AttentionOutput | None]] | None = None


class Backend(ABC):
    """One implementation of the contract.

    Attributes
    ----------
    name
        The name of its spec.
    contract_version
        The version of the contract it was written for, ``"major.minor"``.
    priority
        Among equally specific owners of an array type the highest wins automatic choice.
    automatic
        ``False`` keeps it out of automatic choice.
    paths
        Names of its paths; ``backend="name:path"`` forces one.
    """

    name: ClassVar[str]
    contract_version: ClassVar[str] = "1.0"
    priority: ClassVar[int] = 0
    automatic: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("attention",)

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Declare what the backend can do; asked once."""

    @abstractmethod
    def attention(
        self, query: Array, key: Array, value: Array, operands: Operands, request: AttentionRequest
    ) -> AttentionOutput:
        """Compute one call; arrays are validated, 4-D and of one library.

        Parameters
        ----------
        query, key, value
            ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]``; any strides, never to be modified.
        operands
            The rest of the data; ``request.visible(operands)`` is the boolean mask of it all.
        request
            Everything else.

        Returns
        -------
        AttentionOutput
            Output ``[B, H, T, E]`` in the query's dtype, LSE ``[B, H, T]`` in ``request.accumulate`` where
            ``request.lse`` asks for it.
        """

    @abstractmethod
    def from_numpy(self, array: np.ndarray[Any, Any]) -> Array:
        """Copy a NumPy array into one of this backend's."""

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """Copy an array of this backend into a NumPy one; waits for the device."""

    def unsupported(self, request: AttentionRequest, path: str | None = None) -> list[Reason]:
        """Give every reason why the backend (or one of its paths) cannot take the request; an empty list means yes."""
        del path  # every path of a backend that does not override this takes what its capabilities say
        return self.capabilities().unsupported(request)

    def preference(self, request: AttentionRequest) -> tuple[str, ...]:
        """Give the names of the paths, the one to take first; those that refuse are passed over."""
        del request  # a matter of speed, which only the backend can know
        return self.paths

    def plan(self, request: AttentionRequest, path: str) -> Plan:
        """Prepare a request for one path, which takes it (``unsupported`` said so)."""

        def run(query: Array, key: Array, value: Array, operands: Operands) -> AttentionOutput:
            return self.attention(query, key, value, operands, request)

        return Plan(path, run)

    def beside(self, array: Array) -> AbstractContextManager[Any]:
        """Give a context in which work is queued where that of an array of another library is: on its stream.

        A converted call runs in it; only where work waits in a queue of its own is there anything to do.
        """
        del array  # most backends are done with a call when it returns
        return nullcontext()

    # Storage primitives: bytes here, bookkeeping in attnkit.cache.

    def make_cache(self, config: KVCacheConfig, choice: str | Backend) -> KVCache | None:
        """Give a cache of the backend's own, or ``None`` for attnkit's, whose bytes lie in the primitives below.

        ``choice`` is the backend or ``"backend:path"`` that the cache's calls are to go to. What the backend's
        capabilities do not declare has been refused before.
        """
        del config, choice  # attnkit's caches do for most
        return None

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Give a plane of zeros, ``[K, N, F]``, of one of the element types of the contract, ``int8`` or ``uint8``."""
        return self.from_numpy(np.zeros(shape, numpy_dtype(dtype)))

    def begin_step(self, pages: Pages, tables: StepTables, mirrors: StepMirrors | None) -> StepMirrors | None:
        """Write a step of a cache where captured work reads it, into ``mirrors`` or, at first, into new ones.

        ``None``: the backend captures no work; ``write`` and ``attend_pages`` then get host integers, as outside a
        step. One that does takes ``mirrors.slots`` and ``mirrors.table`` in their place, and plans for
        ``tables.room`` keys, of which those before ``kv_lengths`` are there.

        Parameters
        ----------
        pages
            Storage of the first layer; the others have the same slots.
        tables
            The step.
        mirrors
            What this gave for an earlier step of the same kind and storage.
        """
        del pages, tables, mirrors  # most libraries replay no work
        return None

    def write(self, plane: Array, slots: IntArray, tokens: Array) -> None:
        """Store tokens in slots, converted by value to the plane's element type.

        Parameters
        ----------
        plane
            What ``allocate`` gave, ``[K, N, F]``.
        slots
            Host integers ``[B, T]``; no two alike, except negative ones, which are skipped.
        tokens
            ``[B, K, T, F]``.
        """
        for sequence, start, stop, slot in runs(slots):
            plane[:, slot : slot + stop - start] = tokens[sequence, :, start:stop]

    def gather(self, plane: Array, slots: IntArray) -> Array:
        """Copy slots ``[B, n]`` of a plane out, ``[B, K, n, F]``; a negative slot gives zeros."""
        heads, _, features = plane.shape
        found = self.allocate((slots.shape[0], heads, slots.shape[1], features), dtype_name(plane.dtype))
        for sequence, start, stop, slot in runs(slots):
            found[sequence, :, start:stop] = plane[:, slot : slot + stop - start]
        return found

    def attend_pages(
        self, query: Array, pages: Pages, table: SlotTable, operands: Operands, plan: Plan
    ) -> AttentionOutput:
        """Attend over pages; the keys of sequence ``b`` are the slots of its spans, in order.

        This one hands views to the plan where there are any, and decoded copies otherwise. ``operands`` holds the
        stored lengths as ``kv_lengths``, unless all sequences are as long as the key axis.
        """
        key, value = pages.key.view(table), pages.value.view(table)
        key = pages.key.read(self, table.slots) if key is None else key
        value = pages.value.read(self, table.slots) if value is None else value
        return plan.run(query, key, value, operands)

    def attend_packed(
        self,
        query: Array,
        key: Array,
        value: Array,
        starts: tuple[Sequence[int], Sequence[int]],
        operands: Operands,
        plan: Plan,
    ) -> AttentionOutput | None:
        """Attend over sequences laid end to end, all of them at once; ``None``: the caller asks for one by one.

        Parameters
        ----------
        query, key, value
            ``[N, H, D]``, ``[M, K, D]``, ``[M, K, E]``; any strides, never to be modified.
        starts
            Of the queries and of the keys of each sequence, host integers ``[B + 1]``.
        operands, plan
            Those of the same sequences as a padded batch, with ``query_lengths`` and ``kv_lengths``.

        Returns
        -------
        AttentionOutput
            Output ``[N, H, E]``.
        """
        del query, key, value, starts, operands, plan  # only where a call costs more than its work is there a point
        return None

    def vjp(
        self, function: Callable[..., Sequence[Array]], arrays: Sequence[Array], cotangents: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        """Evaluate ``function(*arrays)`` and differentiate it, by the library's own means: a vector-Jacobian product.

        A backend that declares ``grad`` implements it, so that tools that do not know its arrays can ask for gradients.

        Parameters
        ----------
        function
            Takes ``arrays`` and gives as many results as there are cotangents; it calls ``attnkit``.
        arrays
            What to differentiate with respect to; any strides, never to be modified.
        cotangents
            For each result an array of its shape and element type.

        Returns
        -------
        results, gradients
            What ``function`` gave, and for each of ``arrays`` the gradient of ``sum(cotangent * result)``, of its shape
            and element type; zeros where the results do not depend on it.

        Raises
        ------
        UnsupportedError
            With the code ``vjp``, if the backend has no such means.
        """
        del function, arrays, cotangents  # only a library with automatic differentiation has a use for them
        reason = Reason("vjp", "vjp", "implemented by the backend", "absent")
        raise UnsupportedError(f"backend {self.name!r} offers no way to ask for gradients:", {self.name: (reason,)})

    def refuse(self, request: AttentionRequest, path: str | None = None) -> None:
        """Raise ``UnsupportedError`` with all reasons if the request cannot be taken."""
        reasons = self.unsupported(request, path)
        if reasons:
            name = self.name if path is None else f"{self.name}:{path}"
            raise UnsupportedError(f"backend {name!r} does not take this call:", {name: tuple(reasons)})
