"""What a report says about where it was made."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import attnkit as ak
from attnkit_conformance import environment as module
from attnkit_conformance.environment import environment


def test_versions_and_hardware() -> None:
    found = environment(ak.Capabilities())
    assert found["numpy"] == np.__version__
    assert sys.version.startswith(found["python"].rpartition(" ")[2])
    assert int(found["cpus"]) > 0
    assert found["cpu"]
    assert "gpu" not in found
    assert "device" not in found


def test_the_libraries_that_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arraylib", SimpleNamespace(__version__="3.1"))
    found = environment(ak.Capabilities(libraries=frozenset({"numpy", "arraylib", "never_loaded"})))
    assert found["arraylib"] == "3.1"
    assert "never_loaded" not in found


@pytest.mark.parametrize(("status", "told"), [(0, "Chip 9, 550.1; Chip 9, 550.1"), (9, None)])
def test_the_chips(monkeypatch: pytest.MonkeyPatch, status: int, told: str | None) -> None:
    done = subprocess.CompletedProcess((), status, "Chip 9, 550.1\nChip 9, 550.1\n", "")
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(module.subprocess, "run", lambda *arguments, **options: done)
    chips = ak.Capabilities(devices=frozenset({"cpu", "cuda"}))
    assert environment(chips, "cuda:1").get("gpu") == told
    assert environment(chips, "cuda:1")["device"] == "cuda:1"
