"""Command: a backend that is a program of any language, asked by lines of JSON and files of numbers."""

from attnkit_conformance.command.backend import CommandBackend
from attnkit_conformance.command.lines import CommandFailureError

__all__ = ["CommandBackend", "CommandFailureError"]
