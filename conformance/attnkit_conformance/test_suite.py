"""The suite as a test file of its own: ``pytest --pyargs attnkit_conformance --attnkit-backend NAME``."""

from attnkit_conformance.suite import *  # noqa: F403  # the suite's classes are the tests
