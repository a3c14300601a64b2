"""Failures: what a backend raises, and how its process ends, as the judge's process learns of it.

An error crosses as data and comes back as the class that the contract, or Python, has for it, so that a check catches
what it would catch in one process. What comes from the backend's process is a ``BackendError`` as well, unless it is
an error of attnkit: so an error that the suite itself makes is never taken for one of the backend.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import attnkit as ak
from attnkit_conformance.harness.targets import TargetError, UnavailableError


class BackendError(Exception):
    """An error that a backend raised, and that the contract does not speak of."""


class BackendGone(Exception):  # noqa: N818  # what became of it, which is its status in a report
    """The backend's process is there no more; it stays so until another one is started."""


class BackendDied(BackendGone):
    """The backend's process ended, or sent what is no answer."""


class BackendHung(BackendGone):
    """The backend's process gave no answer in time, and was ended."""


_OWN: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (
        *(ak.BackendNotFoundError, ak.BackendUnavailableError, ak.PluginError, ak.UnsupportedError, ak.ShapeError),
        *(ak.DTypeError, ak.CacheCapacityError, ak.CacheFileError, ak.DeviceError, ak.AttnkitError),
        *(TargetError, UnavailableError),
    )
}
_BUILTIN: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (
        *(ArithmeticError, AssertionError, AttributeError, BufferError, FloatingPointError, ImportError, IndexError),
        *(KeyError, LookupError, MemoryError, NotImplementedError, OSError, OverflowError, RecursionError),
        *(RuntimeError, TypeError, ValueError, ZeroDivisionError, NameError, EOFError),
    )
}
_KNOWN = {**_BUILTIN, **_OWN}


def told(error: Exception) -> dict[str, Any]:
    """Give an error as data, which crosses."""
    kind = next((base.__name__ for base in type(error).__mro__ if _KNOWN.get(base.__name__) is base), "")
    name, message = type(error).__name__, _message(error)
    data: dict[str, Any] = {"kind": kind, "message": message if name == kind else f"{name}: {message}"}
    if isinstance(error, ak.UnsupportedError):
        data["reasons"] = {str(name): [_told(reason) for reason in why] for name, why in error.reasons.items()}
    elif kind not in _OWN:
        data["where"] = _where(error)
    return data


def raised(data: Mapping[str, Any]) -> Exception:
    """Give back an error that ``told`` made data of."""
    kind, message = str(data["kind"]), str(data["message"])
    if kind == "UnsupportedError":
        error: Exception = _unsupported(message, data.get("reasons", {}))
    else:
        error = (_OWN.get(kind) or _made(kind))(message)
    if data.get("where"):
        error.add_note(f"raised at {data['where']}")
    return error


def clean(text: str) -> str:
    """Give a text that can be written anywhere: what UTF-8 has no bytes for, as in odd file names, is spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_from_backend(error: Exception) -> bool:
    """Tell whether an error speaks of a backend in a process of its own; any other is the suite's own."""
    return isinstance(error, AssertionError | BackendError | ak.AttnkitError)


@cache
def _made(kind: str) -> type[Exception]:
    """Give the class of the errors of a backend that are of a builtin class, and of those that are of none."""
    return type(kind, (BackendError, _BUILTIN[kind]), {}) if kind in _BUILTIN else BackendError


def _unsupported(message: str, reasons: Mapping[str, Any]) -> ak.UnsupportedError:
    error = ak.UnsupportedError("", {name: tuple(ak.Reason(**one) for one in why) for name, why in reasons.items()})
    error.args = (message,)  # which holds the lines of the reasons already
    return error


def _message(error: Exception) -> str:
    try:
        return clean(str(error.args[0] if type(error) is KeyError and error.args else error))  # which would quote it
    except Exception:  # it may be a class of the backend
        return "(it cannot be shown)"


def _told(reason: ak.Reason) -> dict[str, str]:
    return {name: clean(str(value)) for name, value in reason.to_dict().items()}


def _where(error: Exception) -> str:
    """Give the last line of the program that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
