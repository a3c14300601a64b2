"""Explanation: what selection decides for a request and why not otherwise, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attnkit.backend import Backend
from attnkit.conversion import target_library
from attnkit.errors import AttnkitError, Reason
from attnkit.registry import registry, unavailable
from attnkit.request import AttentionRequest
from attnkit.selection import (
    Choice,
    Rejected,
    Selection,
    claim_rank,
    describe,
    not_automatic,
    not_owner,
    reasons_against,
    select,
    unavailable_reason,
)

Claims = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What selection decides for a request, without running it.

    Attributes
    ----------
    request
        The request that was asked about.
    choice
        What was asked for, in words.
    backend, path
        What would run, or ``None`` where nothing takes the request.
    converted_to
        The library that the call's arrays would be converted to (and the result back from), or ``None`` where the
        backend takes them as they are.
    rejected
        For every other ``"backend"`` and ``"backend:path"``, all reasons why it was not taken; those of a backend hold
        for each of its paths.
    error
        The message of the error that the call would raise, or an empty string.
    """

    request: AttentionRequest
    choice: str
    backend: str | None
    path: str | None
    rejected: Rejected = field(default_factory=dict)
    error: str = ""
    converted_to: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON-ready data."""
        rejected = {name: [reason.to_dict() for reason in reasons] for name, reasons in self.rejected.items()}
        return {
            "choice": self.choice,
            "backend": self.backend,
            "path": self.path,
            "converted_to": self.converted_to,
            "error": self.error,
            "rejected": rejected,
            "request": {**self.request._asdict(), "mask": self.request.mask._asdict()},
        }

    def __str__(self) -> str:
        taken = f"{self.backend}:{self.path}" if self.backend else "nothing"
        lines = [f"{taken} takes the call ({self.choice})"]
        if self.converted_to:
            library = self.request.array_type[-1].partition(".")[0]
            lines.append(f"  {library} arrays are converted to {self.converted_to}, the result back")
        lines += [f"  {line}" for line in self.error.splitlines()[:1]]
        lines += [f"  {name}: {reason}" for name, reasons in self.rejected.items() for reason in reasons]
        return "\n".join(lines)


def explain_request(request: AttentionRequest, choice: Choice) -> Explanation:
    """Say what takes a request and give all reasons of every other backend and path; runs nothing."""
    try:
        taken: Selection | None = select(request, choice)
        error = ""
    except AttnkitError as failure:
        taken, error = None, str(failure)
    rejected: Rejected = {}
    for name in sorted({info.name for info in registry.infos()}):
        rejected |= _registered(name, request, choice, taken)
    for item in _items(choice):
        if isinstance(item, Backend) and not _is_registered(item):
            rejected |= _rejections(item, (), request, choice, taken)
    backend, path = (taken.backend.name, taken.plan.path) if taken else (None, None)
    converted_to = target_library(taken.backend, request) if taken else None
    return Explanation(request, describe(choice), backend, path, rejected, error, converted_to)


def _registered(name: str, request: AttentionRequest, choice: Choice, taken: Selection | None) -> Rejected:
    try:
        spec = registry.spec(name)
        reason = unavailable(spec)
        if reason:
            return {name: (unavailable_reason(reason, spec.install_hint),)}
        backend = registry.load(name)
    except AttnkitError as error:
        return {name: (unavailable_reason(str(error)),)}
    return _rejections(backend, spec.owns, request, choice, taken)


def _rejections(
    backend: Backend, owns: Claims, request: AttentionRequest, choice: Choice, taken: Selection | None
) -> Rejected:
    """Give the reasons against a backend, which hold for all its paths, and those against a path alone."""
    name, running = backend.name, taken.plan.path if taken and taken.backend is backend else None
    reasons = list(reasons_against(backend, None, request))
    if running is None:
        reasons += _passed_over(backend, owns, request, choice, taken, refused=bool(reasons))
    rejected = {name: tuple(reasons)} if reasons else {}
    for path in backend.paths:
        more = [reason for reason in reasons_against(backend, path, request) if reason not in reasons]
        if path != running and not reasons and not more:
            more.append(_path_passed_over(name, path, choice, taken))
        if more:
            rejected[f"{name}:{path}"] = tuple(more)
    return rejected


def _passed_over(
    backend: Backend,
    owns: Claims,
    request: AttentionRequest,
    choice: Choice,
    taken: Selection | None,
    *,
    refused: bool,
) -> list[Reason]:
    """Say why selection did not come to a backend, or did not stop at it although it takes the request."""
    name = backend.name
    if choice is not None:
        asked = any(item is backend or (isinstance(item, str) and _name(item) == name) for item in _items(choice))
        return [] if asked else [Reason("not_chosen", "backend", describe(choice), name, f"pass backend={name!r}")]
    if claim_rank(owns, request) is None:
        return [not_owner(request)]
    if not backend.automatic:
        return [not_automatic(name)]
    winner = taken.backend.name if taken else "a single winner"
    return [] if refused else [Reason("outranked", "backend", winner, name, f"pass backend={name!r}")]


def _path_passed_over(name: str, path: str, choice: Choice, taken: Selection | None) -> Reason:
    spelled = f"{name}:{path}"
    hint = f"force it with backend={spelled!r}"
    paths_chosen = [item for item in _items(choice) if isinstance(item, str) and item.startswith(f"{name}:")]
    if taken is None or (paths_chosen and spelled not in paths_chosen):
        return Reason("not_chosen", "path", describe(choice), path, hint)
    return Reason("outranked", "path", f"{taken.name}, which is preferred here", path, hint)


def _items(choice: Choice) -> tuple[str | Backend, ...]:
    if choice is None:
        return ()
    return choice if isinstance(choice, tuple) else (choice,)


def _name(item: str) -> str:
    return item.partition(":")[0]


def _is_registered(backend: Backend) -> bool:
    try:
        return registry.load(backend.name) is backend
    except AttnkitError:
        return False
