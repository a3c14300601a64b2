"""Interception: what a plug-in may do with a call on its library's arrays before the call is looked at.

A library's compiler, or a transformation of functions such as a vectorising map, hands over stand-ins for arrays and
cannot see through selection. The plug-in that owns such arrays may give an *interceptor*,

``intercept(query, key, value, options, lse, backend) -> AttentionOutput | None``

which gets every call on them, 4-D and otherwise as the caller made it: it gives the result, or ``None`` to let the call
go its usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from attnkit.arrays import class_names
from attnkit.backend import AttentionOutput
from attnkit.errors import PluginError
from attnkit.registry import registry

Interceptor = Callable[..., AttentionOutput | None]


def interceptor(kind: type) -> Interceptor | None:
    """Give the interceptor of calls whose query is of class ``kind``."""
    _look_up(kind)
    return _found[kind]


_found: dict[type, Interceptor | None] = {}


def _look_up(kind: type) -> None:
    _found[kind] = _interceptor(class_names(kind), registry.generation)


# torch.compile runs a function with this attribute while it traces, and traces on behind it; what
# torch.compiler.assume_constant_result sets, but that is not there before torch is imported. It cannot call what such a
# function gives, hence the table.
_look_up._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _interceptor(names: tuple[str, ...], _generation: int) -> Interceptor | None:
    for name in registry.names():
        try:
            spec = registry.spec(name)
        except PluginError:  # two plug-ins claim the name: whoever chooses it is told
            continue
        if spec.intercept is not None and any(owned in names for owned, _ in spec.owns):
            return _loaded(name, spec.intercept)
    return None


def _loaded(name: str, load: Callable[[], Interceptor]) -> Interceptor:
    try:
        return load()
    except Exception as error:
        raise PluginError(f"backend {name!r} failed to give its interceptor: {error}") from error
