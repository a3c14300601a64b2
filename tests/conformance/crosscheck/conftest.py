"""Faulty backends as sides, by the name of the fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attnkit_conformance.crosscheck.sides import Live
from attnkit_conformance.selftest.mutants import BY_NAME
from attnkit_conformance.selftest.plain import Plain


@pytest.fixture
def faulty() -> Callable[[str], Live]:
    return lambda name: Live(BY_NAME[name].subject())


@pytest.fixture
def plain() -> Live:
    return Live(Plain())
