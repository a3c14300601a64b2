"""What is wrong with a package."""

from __future__ import annotations


class PackageError(ValueError):
    """A folder is no package, or not the one that was written; the message says what to look at."""
