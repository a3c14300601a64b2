"""Harness: the backend under test, and everything that the suite ever asks of it.

Every method takes and gives NumPy arrays, plain data, and *things*: arrays, masks and caches that live with the backend
and that the suite only hands back. So the same methods can be called in another process (``harness.remote``), and what
the suite knows of the right answers never comes near the backend. A method that says that it gives a ``NumpyArray``
gives numbers; any other gives a thing wherever it gives an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

import attnkit as ak
from attnkit.arrays import dtype_name, needs_grad
from attnkit.call import describe_call, gather_options
from attnkit_conformance.environment import environment
from attnkit_conformance.harness.cache_calls import CacheCalls
from attnkit_conformance.harness.foreign import Foreign
from attnkit_conformance.harness.tracking import requiring_grad
from attnkit_conformance.harness.views import VIEWS

NumpyArray = np.ndarray[Any, Any]
Thing = Any
"""An object that lives with the backend: an array of its library, a mask, a cache, or what came of one."""


class Description(NamedTuple):
    """What a backend says about itself.

    Attributes
    ----------
    name
        The name it was asked for: ``"numpy"``, or ``"numpy:tiled"`` for one path of it.
    path
        The path that was asked for, or ``None`` for the backend as a whole.
    paths
        All of its paths.
    source
        The plug-in that it comes from, with its version.
    contract_version
        The version of the contract that it is written for.
    capabilities
        What it declares.
    """

    name: str
    path: str | None
    paths: tuple[str, ...]
    source: str
    contract_version: str
    capabilities: ak.Capabilities


class Harness(CacheCalls):
    """A backend in this process.

    Parameters
    ----------
    name
        The name it was asked for.
    backend
        The backend.
    choice
        What ``backend=`` gets: by default the name, for one that is registered.
    source
        The plug-in that it comes from, with its version.
    device
        Where its arrays are to lie, in the words of its array library; by default where its ``from_numpy`` puts them.

    Attributes
    ----------
    is_remote
        The backend lives in a process of its own, which may be lost.
    gone
        What became of that process, if it is there no more.
    """

    is_remote = False
    gone: Exception | None = None

    def __init__(
        self, name: str, backend: ak.Backend, choice: ak.Backend | str | None = None, source: str = "", device: str = ""
    ) -> None:
        self.name = name
        self.backend = backend
        self.choice = name if choice is None else choice
        self.source = source
        self.device = device

    def allow(self, seconds: float) -> None:
        """Give the backend so much time from now on; only one in a process of its own can be interrupted."""

    def close(self) -> None:
        """End the backend's process, if it has one of its own."""

    def describe(self) -> Description:
        """Say what is under test."""
        return Description(
            name=self.name,
            path=self.name.partition(":")[2] or None if isinstance(self.choice, str) else None,
            paths=self.backend.paths,
            source=self.source,
            contract_version=self.backend.contract_version,
            capabilities=self.backend.capabilities(),
        )

    def environment(self) -> dict[str, str]:
        """Say what the backend runs on: versions and hardware."""
        return environment(self.backend.capabilities(), self.device)

    # Arrays

    def array(self, array: NumpyArray) -> Thing:
        """Copy a NumPy array into the backend."""
        made = self.backend.from_numpy(array)
        if type(made) is np.ndarray and not made.flags.writeable:
            made = made.copy()  # as a user's would be: others could not be written over to see who kept them
        return array_api_compat.to_device(made, self.device) if self.device else made

    def numpy(self, thing: Thing) -> NumpyArray:
        """Copy an array of the backend into a NumPy one."""
        array = self.backend.to_numpy(thing)
        if not isinstance(array, np.ndarray):
            raise TypeError(f"to_numpy must give a NumPy array, got {type(array).__name__}")
        shown = _shown(thing)
        if shown not in (None, (array.shape, array.dtype.name)):
            raise TypeError(f"to_numpy must give the array as it is, {shown}, got {(array.shape, array.dtype.name)}")
        return array

    def view(self, array: NumpyArray, how: str) -> Thing:
        """Copy a NumPy array into the backend so that it lies there in one of the ways of ``VIEWS``."""
        return VIEWS[how](self.array, array)

    def broadcast(self, array: NumpyArray, shape: Sequence[int]) -> Thing:
        """Copy a NumPy array into the backend, and repeat it there without a copy (stride 0)."""
        one = self.array(array)
        return array_api_compat.array_namespace(one).broadcast_to(one, tuple(shape))

    def foreign(self, array: NumpyArray) -> Thing:
        """Give an array of a library that no backend declares."""
        return Foreign(array)

    def requiring_grad(self, array: NumpyArray) -> Thing:
        """Copy a NumPy array into the backend so that it requires gradients, where there is such a thing."""
        return requiring_grad(self.array(array))

    def needs_grad(self, thing: Thing) -> bool:
        """Tell whether an array requires gradients."""
        return needs_grad(thing)

    def litter(self, array: NumpyArray, times: int) -> None:
        """Copy an array into the backend a few times and let go of the copies, so that new memory may look like it."""
        copies = [self.array(array) for _ in range(times)]
        del copies[:]

    def write(self, thing: Thing, array: NumpyArray | float) -> bool:
        """Write new contents into an array where it lies; ``False`` where its library does not allow that."""
        if thing is None:
            return False
        try:
            thing[...] = self.array(array) if isinstance(array, np.ndarray) else array
        except (TypeError, ValueError):
            return False
        return True

    # Calls

    def mask(self, terms: Sequence[Sequence[Any]]) -> Thing:
        """Make a mask of its terms, the arrays in them copied into the backend."""
        return reduce(and_, (getattr(ak.Mask, kind)(*map(self._moved, arguments)) for kind, *arguments in terms))

    def attention(self, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False) -> tuple[Thing, ...]:
        """Call ``attnkit.attention``, or with ``lse`` ``attention_with_lse``: output, or output and LSE."""
        if lse:
            return tuple(ak.attention_with_lse(*arrays, **options, backend=self.choice))
        return (ak.attention(*arrays, **options, backend=self.choice),)

    def packed(self, arrays: Sequence[Thing], options: Mapping[str, Any]) -> Thing:
        """Call ``attnkit.attention_packed``; ``arrays`` are query, key, value, and both cumulative lengths."""
        return ak.attention_packed(*arrays, **options, backend=self.choice)

    def merge(self, parts: Sequence[Sequence[Thing]]) -> tuple[Thing, ...]:
        """Call ``attnkit.merge``: output and LSE."""
        return tuple(ak.merge(*((output, lse) for output, lse in parts)))

    def reasons(self, arrays: Sequence[Thing], options: Mapping[str, Any], lse: bool = False) -> list[str]:
        """Give the codes of all reasons of the backend against a call, without making it; none where it takes it."""
        query, key, value = arrays
        request, _ = describe_call(query, key, value, gather_options(**options), lse)
        return [reason.code for reason in self.backend.unsupported(request, self.describe().path)]

    def vjp(
        self, arguments: Mapping[str, Thing], names: Sequence[str], cotangents: Sequence[Thing]
    ) -> tuple[list[Thing], list[Thing]]:
        """Make a call and give its results, and the gradients of the arguments that are named.

        One cotangent is that of the output, a second one that of the log-sum-exp, which is then asked for too.
        """

        def call(*chosen: Thing) -> tuple[Thing, ...]:
            given = {**arguments, **dict(zip(names, chosen, strict=True))}
            arrays = [given.pop(name) for name in ("query", "key", "value")]
            return self.attention(arrays, given, lse=len(cotangents) > 1)

        results, gradients = self.backend.vjp(call, [arguments[name] for name in names], cotangents)
        return list(results), list(gradients)

    def _moved(self, item: Any) -> Any:
        return self.array(item) if isinstance(item, np.ndarray) else item


def _shown(thing: Thing) -> tuple[tuple[int, ...], str] | None:
    """Give the shape and the element type that users of an array see, where it says so itself."""
    shape, dtype = getattr(thing, "shape", None), getattr(thing, "dtype", None)
    return None if shape is None or dtype is None else (tuple(map(int, shape)), dtype_name(dtype))
