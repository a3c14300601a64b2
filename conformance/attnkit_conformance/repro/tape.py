"""Tape: everything that was asked of a backend, call by call, so that it can be asked again or be written as a program.

Everything that the suite asks goes through the methods of a ``Harness``; a tape of them is a straight-line program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from inspect import Signature, signature
from typing import Any, Final

import numpy as np

from attnkit_conformance.harness.local import Harness

_READS: Final = frozenset({"numpy", "cache_count", "reasons", "needs_grad"})
"""Methods that give data; all others give things, or nothing."""
_CACHES: Final = frozenset({"make_cache", "pooled_cache", "load_cache"})
_COMPUTES: Final = _CACHES | {"attention", "packed", "merge", "vjp", "cache_call", "cache_kept", "offload_to_file"}
_CHANGES: Final = frozenset({"cache_call", "cache_kept", "offload_to_file"})
_ARRAYS: Final = frozenset({"array", "view", "broadcast", "foreign", "requiring_grad", "litter", "write"})
_OTHERS: Final = frozenset({"mask", "make_pool", "cache_counter", "cache_checked", "save_cache", "damaged"})
_TAPED: Final = _READS | _COMPUTES | _ARRAYS | _OTHERS
_LOOKS: Final = frozenset({"attend", "attend_with_lse", "read", "match_prefix", "snapshot"})
NUMBERS: Final = frozenset({"fork", "admit", "resume", "remember", "match_prefix"})
"""Methods of a cache that give a number."""


class UnresolvedError(Exception):
    """A call needs what another one did not give."""


@dataclass(frozen=True, slots=True)
class Ref:
    """What an earlier call gave: the number of that call, and where in its result."""

    call: int
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Thing:
    """What the suite holds in its hands in place of a thing of the backend."""

    ref: Ref
    thing: Any


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a method of a harness.

    Attributes
    ----------
    number
        Its name, in this tape and in all that are made from it.
    method
        Name of the method.
    given
        What it got, by the names of its parameters: data, with a ``Ref`` in place of every thing.
    """

    number: int
    method: str
    given: Mapping[str, Any]

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Every thing that it needs."""
        return tuple(item for item in leaves(self.given) if isinstance(item, Ref))

    @property
    def changes(self) -> tuple[Ref, ...]:
        """What it may change."""
        if self.method == "write":
            return (self.given["thing"],) if isinstance(self.given["thing"], Ref) else ()
        looks = self.method not in _CHANGES or self.given.get("method") in _LOOKS
        return () if looks else (self.given["cache"],)

    @property
    def arrays(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The data in it."""
        return tuple(item for item in leaves(self.given) if isinstance(item, np.ndarray))

    @property
    def computes(self) -> bool:
        """Tell whether the backend works something out in it, or stores something."""
        return self.method in _COMPUTES

    def holding(self, change: Callable[[Any], Any]) -> Call:
        """Give the same call with each of its leaves changed."""
        return replace(self, given=walk(self.given, change))


Calls = tuple[Call, ...]


@dataclass(slots=True)
class Run:
    """What came of the calls of a tape: what each gave, or the error that it raised."""

    values: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    def find(self, ref: Ref) -> Any:
        """Give what a reference stands for.

        Raises
        ------
        UnresolvedError
            If there is nothing.
        """
        try:
            found = self.values[ref.call]
            for index in ref.path:
                found = found[index]
        except (LookupError, TypeError):
            raise UnresolvedError(f"nothing at {ref}") from None
        return found


class Taped:
    """A harness that keeps a tape of what it is asked, and forwards it to another one."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.calls: list[Call] = []
        self.run = Run()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._harness, name)
        return partial(self._record, name, found) if name in _TAPED else found

    def _record(self, name: str, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        number, given = len(self.calls), _given(name, arguments, options)
        self.calls.append(Call(number, name, walk(given, _kept)))
        try:
            result = _make(method, name, walk(given, _thing))
        except Exception as error:
            self.run.errors[number] = error
            raise
        self.run.values[number] = result
        return result if name in _READS else _wrapped(result, Ref(number))


def replay(calls: Iterable[Call], harness: Harness, before: Callable[[Call, Run], None] | None = None) -> Run:
    """Make the calls again; one that raises, or that needs what another did not give, does not stop the rest.

    Each call is shown to ``before`` just before it is made.
    """
    run = Run()
    with np.errstate(all="ignore"):
        for call in calls:
            if before is not None:
                before(call, run)
            try:
                given = walk(call.given, partial(_found, run))
                run.values[call.number] = _make(getattr(harness, call.method), call.method, given)
            except Exception as error:  # a backend may raise anything
                run.errors[call.number] = error
    return run


def live(calls: Sequence[Call], numbers: Iterable[int]) -> Calls:
    """Give the calls that some need, and those that change what they need; not those that are only looks at it."""
    needed, kept = set(numbers), []
    pools = {call.number: call.given["pool"].call for call in calls if call.method == "pooled_cache"}
    for call in reversed(calls):
        changed = {ref.call for ref in call.changes}
        changed |= {pools[number] for number in changed if number in pools}  # whose pages other caches have too
        if call.number in needed or changed & needed:
            needed |= {call.number, *(ref.call for ref in call.refs)}
            kept.append(call)
    return tuple(reversed(kept))


def walk(item: Any, change: Callable[[Any], Any]) -> Any:
    """Change every leaf of nested tuples, lists and mappings."""
    if isinstance(item, Mapping):
        return {name: walk(value, change) for name, value in item.items()}
    if isinstance(item, tuple | list):
        changed = (walk(value, change) for value in item)
        return list(changed) if isinstance(item, list) else tuple(changed)
    return change(item)


def leaves(item: Any) -> Iterator[Any]:
    """Give every leaf of nested tuples, lists and mappings."""
    if isinstance(item, Mapping):
        item = tuple(item.values())
    if isinstance(item, tuple | list):
        for value in item:
            yield from leaves(value)
    else:
        yield item


def _given(name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give what a method of a harness gets, by the names of its parameters."""
    bound = _signature(name).bind(*arguments, **options)
    bound.apply_defaults()
    return bound.arguments


def _make(method: Callable[..., Any], name: str, given: Mapping[str, Any]) -> Any:
    bound = _signature(name).bind_partial()
    bound.arguments = dict(given)
    return method(*bound.args, **bound.kwargs)


@cache
def _signature(name: str) -> Signature:
    found = signature(getattr(Harness, name))
    return found.replace(parameters=list(found.parameters.values())[1:])


def _kept(item: Any) -> Any:
    """Give what a tape keeps of an argument: the caller may write over its arrays."""
    if isinstance(item, Thing):
        return item.ref
    return item.copy() if isinstance(item, np.ndarray) else item


def _thing(item: Any) -> Any:
    return item.thing if isinstance(item, Thing) else item


def _wrapped(result: Any, ref: Ref) -> Any:
    """Put a ``Thing`` around every thing in a result."""
    if isinstance(result, tuple | list):
        return tuple(_wrapped(item, Ref(ref.call, (*ref.path, n))) for n, item in enumerate(result))
    return result if result is None or isinstance(result, int) else Thing(ref, result)


def _found(run: Run, item: Any) -> Any:
    """Give what an argument stands for in a new run."""
    if isinstance(item, Ref):
        return run.find(item)
    return item.copy() if isinstance(item, np.ndarray) else item
