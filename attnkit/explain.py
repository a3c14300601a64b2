"""Explanation: what selection decides for a request and why not otherwise, without running it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnkit.backend import Backend
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


@dataclass(frozen=True, slots=True)
class Explanation:
    """What selection decides for a request, without running it.

    Attributes
    ----------
    request
        The request that was asked about.
    choice
        What was asked for, in words, and where that came from.
    backend, path
        What would run, or ``None`` where nothing takes the request.
    rejected
        For every other ``"backend"`` and ``"backend:path"``, all reasons why it was not taken.
    error
        The message of the error that the call would raise, or an empty string.
    """

    request: AttentionRequest
    choice: str
    backend: str | None
    path: str | None
    rejected: Rejected = field(default_factory=dict)
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON-ready data."""
        rejected = {name: [reason.to_dict() for reason in reasons] for name, reasons in self.rejected.items()}
        return {
            "choice": self.choice,
            "backend": self.backend,
            "path": self.path,
            "error": self.error,
            "rejected": rejected,
            "request": {**self.request._asdict(), "mask": self.request.mask._asdict()},
        }

    def __str__(self) -> str:
        taken = f"{self.backend}:{self.path}" if self.backend else "nothing"
        lines = [f"{taken} takes the call ({self.choice})"]
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
    for info in registry.infos():
        rejected |= _rejections(info.name, request, choice, taken)
    backend, path = (taken.backend.name, taken.plan.path) if taken else (None, None)
    return Explanation(request, describe(choice), backend, path, rejected, error)


def _rejections(name: str, request: AttentionRequest, choice: Choice, taken: Selection | None) -> Rejected:
    try:
        spec = registry.spec(name)
        reason = unavailable(spec)
        if reason:
            return {name: (Reason("unavailable", "backend", "able to run here", reason, spec.install_hint),)}
        backend = registry.load(name)
    except AttnkitError as error:
        return {name: (unavailable_reason(str(error)),)}
    reasons = list(reasons_against(backend, None, request))
    if taken is not None and backend is taken.backend:
        return {
            f"{name}:{path}": _path_reasons(backend, path, request, taken)
            for path in backend.paths
            if path != taken.plan.path
        }
    if choice is not None:
        reasons.append(Reason("not_chosen", "backend", describe(choice), name, f"pass backend={name!r}"))
    elif claim_rank(spec.owns, request) is None:
        reasons.append(not_owner(request))
    elif not backend.automatic:
        reasons.append(not_automatic(name))
    elif not reasons:
        winner = taken.backend.name if taken else "a single winner"
        reasons.append(Reason("outranked", "backend", winner, name, f"pass backend={name!r}"))
    return {name: tuple(reasons)}


def _path_reasons(backend: Backend, path: str, request: AttentionRequest, taken: Selection) -> tuple[Reason, ...]:
    reasons = backend.unsupported(request, path)
    hint = f"force it with backend='{backend.name}:{path}'"
    return tuple(reasons) or (Reason("outranked", "path", f"{taken.plan.path}, which is preferred here", path, hint),)
