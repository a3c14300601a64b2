"""The exception tree, and the reasons that a refusal carries.

::

    AttnkitError
    ├── BackendNotFoundError      (LookupError)          no backend of that name
    ├── BackendUnavailableError   (ImportError)          it cannot run here
    ├── PluginError               (RuntimeError)         a plug-in is broken or ambiguous
    ├── UnsupportedError          (NotImplementedError)  no backend takes the call; see ``.reasons``
    ├── ShapeError                (ValueError)           an array or number does not fit
    ├── DTypeError                (TypeError)            an element type does not fit
    ├── CacheCapacityError        (ValueError)           the cache is full
    ├── CacheFileError            (ValueError)           a saved cache is torn, altered or no such file
    └── DeviceError               (RuntimeError)         arrays lie on different devices

Each class also inherits the builtin that a caller would catch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

_PHRASES = {
    "unavailable": "cannot run here: {actual}",
    "broken": "cannot judge the request: {actual}",
    "outranked": "passed over for {required}",
    "not_chosen": "not what was {required}",
    "not_owner": "does not own {actual}",
    "not_automatic": "is never taken by automatic choice",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a backend or a path does not take a request, as data.

    Parameters
    ----------
    code
        Stable identifier: the name of the ``Capabilities`` field that says no, ``"path"`` for what one path leaves to
        another of its backend, or one of the codes of selection (``"unavailable"``, ``"broken"``, ``"not_chosen"``,
        ``"not_owner"``, ``"not_automatic"``, ``"outranked"``).
    field
        The part of the request that was looked at, such as ``"head_dim"``.
    required
        What the backend asks for, in words.
    actual
        What the request has, in words.
    hint
        What would help ("install attnkit[torch]"), or an empty string.
    """

    code: str
    field: str
    required: str
    actual: str
    hint: str = ""

    def __str__(self) -> str:
        phrase = _PHRASES.get(self.code, "{field} must be {required}, got {actual}")
        text = phrase.format(field=self.field, required=self.required, actual=self.actual)
        return f"{text} ({self.hint})" if self.hint else text

    def to_dict(self) -> dict[str, str]:
        """Give the five fields as a plain dictionary."""
        return asdict(self)


class AttnkitError(Exception):
    """The root of every error that attnkit raises on purpose."""


class BackendNotFoundError(AttnkitError, LookupError):
    """No backend is registered under that name."""


class BackendUnavailableError(AttnkitError, ImportError):
    """The backend is registered, but it cannot run on this machine."""


class PluginError(AttnkitError, RuntimeError):
    """A plug-in is broken, speaks another contract, or clashes with another one."""


class UnsupportedError(AttnkitError, NotImplementedError):
    """No backend takes the request.

    Attributes
    ----------
    reasons
        For every backend (or ``"backend:path"``) that was asked, all of its reasons.
    """

    def __init__(self, message: str, reasons: Mapping[str, tuple[Reason, ...]] | None = None) -> None:
        self.reasons: dict[str, tuple[Reason, ...]] = dict(reasons or {})
        lines = [f"  {name}: {reason}" for name, why in self.reasons.items() for reason in why]
        super().__init__("\n".join([message, *lines]))


class ShapeError(AttnkitError, ValueError):
    """A shape, a length or a number does not fit the contract."""


class DTypeError(AttnkitError, TypeError):
    """An element type does not fit the contract."""


class CacheCapacityError(AttnkitError, ValueError):
    """An append would exceed the capacity of the cache; nothing was written."""


class CacheFileError(AttnkitError, ValueError):
    """A file is not a saved cache, or not as it was written; nothing was loaded."""


class DeviceError(AttnkitError, RuntimeError):
    """The arrays of one call lie on different devices."""
