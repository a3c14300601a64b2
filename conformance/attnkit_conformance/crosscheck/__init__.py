"""Cross-checking: two implementations, the same requests, and the oracle to say which of them is wrong."""

from attnkit_conformance.crosscheck.checking import crosscheck
from attnkit_conformance.crosscheck.report import CrossReport, Finding

__all__ = ["CrossReport", "Finding", "crosscheck"]
