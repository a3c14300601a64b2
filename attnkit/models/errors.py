"""The errors of this package."""

from __future__ import annotations

from attnkit.errors import AttnkitError


class ModelError(AttnkitError, ValueError):
    """A model, its weights or its tokenizer cannot be fetched, read or run; the message says which and why."""


class MissingExtraError(AttnkitError, ModuleNotFoundError):
    """The packages of the extra ``models`` are not installed; the message has the command that installs them."""
