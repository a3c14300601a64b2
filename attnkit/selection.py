"""Selection: which backend and path take a request, and why not the others.

Order: the ``backend=`` argument, then the ``use_backend()`` context, then ``ATTNKIT_BACKEND``, then automatic choice.
The first three are explicit and never fall back to anything that they do not name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from attnkit.backend import Backend, Plan
from attnkit.conversion import as_taken, converting, target_library
from attnkit.errors import (
    AttnkitError,
    BackendNotFoundError,
    BackendUnavailableError,
    PluginError,
    Reason,
    UnsupportedError,
)
from attnkit.registry import registry
from attnkit.request import AttentionRequest

ENVIRONMENT = "ATTNKIT_BACKEND"
Choice = str | Backend | tuple[str | Backend, ...] | None
Rejected = dict[str, tuple[Reason, ...]]
Taken = TypeVar("Taken")

_context: ContextVar[Choice] = ContextVar("attnkit_backend", default=None)


@dataclass(frozen=True, slots=True)
class Selection:
    """The backend that takes a request, and the plan of its chosen path; it may convert to the backend's library."""

    backend: Backend
    plan: Plan

    @property
    def name(self) -> str:
        """``"backend:path"``."""
        return f"{self.backend.name}:{self.plan.path}"


@contextmanager
def use_backend(choice: str | Backend | Sequence[str | Backend]) -> Iterator[None]:
    """Prefer a backend inside a ``with`` block; local to the thread or task.

    Parameters
    ----------
    choice
        ``"numpy"``, ``"numpy:tiled"``, a backend, or a list of them in order of preference.

    Raises
    ------
    BackendNotFoundError
        If a name is not registered.
    """
    token = _context.set(normalise(choice))
    try:
        yield
    finally:
        _context.reset(token)


def current_choice(argument: str | Backend | Sequence[str | Backend] | None) -> Choice:
    """Give what the caller asks for: argument, context, environment, or ``None`` for automatic choice."""
    if argument is not None:
        return argument if isinstance(argument, str) else normalise(argument)
    context = _context.get()
    if context is not None:
        return context
    named = os.environ.get(ENVIRONMENT)
    return _named(named) if named else None


@lru_cache(maxsize=16)
def _named(environment: str) -> Choice:
    names = [name.strip() for name in environment.split(",")]
    try:
        return normalise(names if len(names) > 1 else names[0])
    except BackendNotFoundError as error:
        raise BackendNotFoundError(f"{ENVIRONMENT}={environment}: {error}") from None


def normalise(choice: str | Backend | Sequence[str | Backend]) -> Choice:
    """Check a choice and make it hashable; names must be registered, paths are checked once the backend is loaded.

    Raises
    ------
    BackendNotFoundError
        If a name is unknown, or the list is empty.
    """
    if isinstance(choice, str | Backend):
        return _known(choice)
    if not isinstance(choice, Sequence) or not choice or not all(isinstance(item, str | Backend) for item in choice):
        raise BackendNotFoundError(
            f"backend must be a name, a Backend, or a list of them with at least one, got {choice!r}"
        )
    return tuple(_known(item) for item in choice)


def _known(choice: str | Backend) -> str | Backend:
    """Make sure that a name is registered; whether the backend can be taken is asked when it is."""
    if isinstance(choice, str):
        with suppress(BackendUnavailableError, PluginError):
            registry.spec(choice.partition(":")[0])
    return choice


def select(request: AttentionRequest, choice: Choice) -> Selection:
    """Give the backend and plan for a request; cached by both.

    Raises
    ------
    BackendNotFoundError, BackendUnavailableError
        If an explicitly chosen backend does not exist, or cannot run here.
    UnsupportedError
        If nothing that may be taken takes the request; with all reasons of each.
    PluginError
        If automatic choice is tied.
    """
    return _select(request, choice, registry.generation)


@lru_cache(maxsize=4096)
def _select(request: AttentionRequest, choice: Choice, _generation: int) -> Selection:
    if choice is None:
        return _automatic(request)
    if isinstance(choice, tuple):
        return _preferred(request, choice)
    backend, path = resolve(choice)
    return _take(backend, path, request)


def resolve(choice: str | Backend) -> tuple[Backend, str | None]:
    """Give the backend and the path that a single choice names.

    Raises
    ------
    BackendNotFoundError, BackendUnavailableError, PluginError
        If there is no such backend or path, or it cannot run here.
    """
    if isinstance(choice, Backend):
        return choice, None
    name, colon, path = choice.partition(":")
    backend = registry.load(name)
    if colon and path not in backend.paths:
        raise BackendNotFoundError(f"backend {name!r} has no path {path!r}; available: {', '.join(backend.paths)}")
    return backend, path or None


def _take(backend: Backend, path: str | None, request: AttentionRequest) -> Selection:
    reasons = reasons_against(backend, path, request)
    if reasons:
        name = backend.name if path is None else f"{backend.name}:{path}"
        raise UnsupportedError(f"backend {name!r} does not take this call:", {name: reasons})
    own = as_taken(backend, request)
    try:
        plan: object = backend.plan(own, path or _first_path(backend, own))
    except AttnkitError:
        raise
    except Exception as error:
        raise PluginError(f"backend {backend.name!r} failed to plan: {type(error).__name__}: {error}") from error
    if not isinstance(plan, Plan):
        raise PluginError(f"backend {backend.name!r}: plan() must give a Plan, got {type(plan).__name__}")
    library = target_library(backend, request)
    return Selection(backend, plan if library is None else converting(plan, library, backend))


def _first_path(backend: Backend, request: AttentionRequest) -> str:
    for path in backend.preference(request):
        if path not in backend.paths:
            raise PluginError(f"backend {backend.name!r}: preference() gives {path!r}, its paths are {backend.paths}")
        if not _refusals(backend, request, path):
            return path
    raise PluginError(f"backend {backend.name!r} takes the request, but none of its paths {backend.paths} does")


def reasons_against(backend: Backend, path: str | None, request: AttentionRequest) -> tuple[Reason, ...]:
    """Give all reasons of a backend (or one path of it) against a request."""
    reasons = _refusals(backend, request)
    reasons += [reason for reason in (_refusals(backend, request, path) if path else ()) if reason not in reasons]
    return tuple(reasons)


def _refusals(backend: Backend, request: AttentionRequest, path: str | None = None) -> list[Reason]:
    try:
        return list(backend.unsupported(as_taken(backend, request), path))
    except Exception as error:  # a backend that fails at the question must not hide the others
        return [Reason("broken", "backend", "able to judge the request", f"{type(error).__name__}: {error}")]


def _preferred(request: AttentionRequest, choices: tuple[str | Backend, ...]) -> Selection:
    names = ", ".join(choice if isinstance(choice, str) else choice.name for choice in choices)
    complaint = f"none of the chosen backends ({names}) takes this call:"
    return first_taken(choices, lambda choice: _take(*resolve(choice), request), complaint)


def first_taken(choices: Iterable[str | Backend], take: Callable[[str | Backend], Taken], complaint: str) -> Taken:
    """Give what ``take`` makes of the first choice that can run here and does not refuse.

    Raises
    ------
    UnsupportedError
        With the complaint and the reasons of each, if there is none.
    """
    rejected: Rejected = {}
    for choice in choices:
        try:
            return take(choice)
        except UnsupportedError as error:
            rejected |= error.reasons
        except BackendUnavailableError as error:
            rejected[str(choice)] = (unavailable_reason(str(error)),)
    raise UnsupportedError(complaint, rejected)


def _automatic(request: AttentionRequest) -> Selection:
    owners, rejected = _owners(request)
    eligible: list[tuple[tuple[int, int, int], Backend]] = []
    for rank, backend in owners:
        reasons = reasons_against(backend, None, request)
        if reasons:
            rejected[backend.name] = reasons
        else:
            eligible.append((rank, backend))
    if not eligible:
        for info in registry.infos():
            known = rejected.get(info.name, ())
            if not info.available and all(reason.code == "not_owner" for reason in known):
                rejected[info.name] = (*known, unavailable_reason(info.reason, info.install_hint))
        raise UnsupportedError("no backend takes this call; choose one with backend=..., or mend a reason:", rejected)
    eligible.sort(key=lambda pair: pair[0])
    best = [backend for rank, backend in eligible if rank == eligible[0][0]]
    if len(best) > 1:
        names = " and ".join(repr(backend.name) for backend in best)
        raise PluginError(
            f"automatic choice is tied: backends {names} claim {request.array_type[0]} on {request.device} alike and "
            f"have the same priority {best[0].priority}; choose one with backend=..., use_backend() or {ENVIRONMENT}"
        )
    return _take(best[0], None, request)


def _owners(request: AttentionRequest) -> tuple[list[tuple[tuple[int, int, int], Backend]], Rejected]:
    """Give the loadable owners of the query's array with their rank (least first), and why the others are none."""
    owners: list[tuple[tuple[int, int, int], Backend]] = []
    rejected: Rejected = {}
    for name in registry.names():
        try:
            claim = claim_rank(registry.spec(name).owns, request)
            if claim is None:
                rejected[name] = (not_owner(request),)
                continue
            backend = registry.load(name)
        except AttnkitError as error:
            rejected[name] = (unavailable_reason(str(error)),)
            continue
        if backend.automatic:
            owners.append(((*claim, -backend.priority), backend))
        else:
            rejected[name] = (not_automatic(name),)
    return owners, rejected


def claim_rank(owns: Sequence[tuple[str, str]], request: AttentionRequest) -> tuple[int, int] | None:
    """Give how specific the best claim on the query's array is (least = most specific), or ``None`` without one."""
    kind = request.device.partition(":")[0]
    ranks = [
        (request.array_type.index(array_type), int(device == "*"))
        for array_type, device in owns
        if array_type in request.array_type and device in (kind, "*")
    ]
    return min(ranks, default=None)


def describe(choice: Choice) -> str:
    """Put a choice into words."""
    if choice is None:
        return "automatic choice"
    choices = choice if isinstance(choice, tuple) else (choice,)
    return "chosen: " + ", ".join(item if isinstance(item, str) else item.name for item in choices)


def unavailable_reason(text: str, hint: str = "") -> Reason:
    """Wrap an error about a backend that cannot run here."""
    return Reason("unavailable", "backend", "able to run here", text, hint)


def not_owner(request: AttentionRequest) -> Reason:
    """Say that no claim of a backend covers the query."""
    actual = f"{request.array_type[0]} on {request.device}"
    return Reason(
        "not_owner", "query", "an array that the backend owns", actual, "name the backend to use it nevertheless"
    )


def not_automatic(name: str) -> Reason:
    """Say that a backend must be named."""
    return Reason("not_automatic", "backend", "open to automatic choice", name, f"pass backend={name!r}")
