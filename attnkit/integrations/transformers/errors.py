"""Errors of this package."""

from __future__ import annotations

from attnkit.errors import AttnkitError


class MissingExtraError(AttnkitError, ImportError):
    """A package that this one needs is not installed, or too old."""


class BypassedError(AttnkitError, RuntimeError):
    """A model ran without computing any attention here."""
