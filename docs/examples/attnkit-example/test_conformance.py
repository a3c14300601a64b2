"""The whole conformance suite, on this backend (see ``addopts`` in pyproject.toml)."""

from attnkit_conformance.suite import *  # noqa: F403  # the suite's classes are the tests
