"""What the tests of reproducers share: faulty backends as targets, in this process and in one of a program's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnkit_conformance.items import Item, items
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.subject import Subject

# ``faulty:NAME`` makes the backend of a fault; with REPAIRED set, a correct one in its place. Where the fault is one of
# the cache and not of the backend, it goes where ``make_cache`` is.
FAULTY = """
import os
import attnkit as ak
from attnkit_conformance.selftest.differentiable import Differentiable
from attnkit_conformance.selftest.mutants import MUTANTS
from attnkit_conformance.selftest.plain import Plain

correct = ak.make_cache

def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    harness = next(mutant for mutant in MUTANTS if mutant.name == name).subject().harness

    def fault(config, backend):
        ak.make_cache = correct
        try:
            return harness.make_cache(config.model_dump())
        finally:
            ak.make_cache = fault

    def make():
        if "REPAIRED" in os.environ:
            return Differentiable() if harness.backend.capabilities().grad else Plain()
        if "make_cache" in vars(type(harness)):
            ak.make_cache = fault
        return harness.backend

    return make
"""
Maker = Callable[[], Subject]


class Kit:
    """Under importlib mode tests cannot import this file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def maker(self, name: str) -> Maker:
        """Give what makes the subject of a fault, under the name that it has in a program."""
        mutant = next(mutant for mutant in MUTANTS if mutant.name == name)

        def make() -> Subject:
            harness = mutant.subject().harness
            harness.name = f"faulty:{name}"
            return Subject(harness)

        return make

    def caught(self, make: Maker, test: str) -> Item:
        """Give the first item of a test that a backend fails."""
        return next(item for item in items() if item.test == test and self.fails(item, make()))

    def fails(self, item: Item, subject: Subject) -> bool:
        try:
            item.run(subject)
        except Exception:
            return True
        return False

    def outcomes(self, place: Path) -> list[tuple[int, str]]:
        """Run a program as its reader would: on the faulty backend, and on a correct one in its place."""
        (self.folder / "faulty.py").write_text(FAULTY, "utf-8")
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "error", place / "repro.py"],
                env={**os.environ, "PYTHONPATH": str(self.folder), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for environment in ({}, {"REPAIRED": "1"})
        ]
        outputs = [process.communicate()[0] for process in started]
        return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


@pytest.fixture
def kit(tmp_path: Path) -> Any:
    return Kit(tmp_path)
