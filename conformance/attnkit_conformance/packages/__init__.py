"""Packages: calls, their numbers, and what came or must come of them, in a folder that any language can read."""

from attnkit_conformance.packages.checking import problems
from attnkit_conformance.packages.describing import CallDescription, case_of, describe
from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.packages.folder import Entry, Package
from attnkit_conformance.packages.writing import PackageWriter

__all__ = ["CallDescription", "Entry", "Package", "PackageError", "PackageWriter", "case_of", "describe", "problems"]
