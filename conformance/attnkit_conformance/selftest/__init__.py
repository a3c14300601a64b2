"""Who tests the tests: correct backends, backends that are wrong on purpose, and what the suite makes of them."""

from attnkit_conformance.selftest.report import SelfTest
from attnkit_conformance.selftest.selftest import run_selftest

__all__ = ["SelfTest", "run_selftest"]
