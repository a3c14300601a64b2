"""Golden vectors: calls, what they must give and how nearly, as files; see ``docs/vectors.md``."""

from attnkit_conformance.vectors.exporting import export
from attnkit_conformance.vectors.verifying import Finding, Verification, verify

__all__ = ["Finding", "Verification", "export", "verify"]
