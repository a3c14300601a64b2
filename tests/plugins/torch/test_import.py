"""Torch is loaded when the backend is first used and not before, and nothing that a call does not need with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

import pytest

from attnkit_torch import plugin

COMPILERS = {"sympy", "torch._dynamo", "torch._inductor", "triton"}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Let the version of torch be read anew, before and after."""
    plugin._version.cache_clear()
    yield
    plugin._version.cache_clear()


def loaded(first: str, then: str) -> set[str]:
    """Give the modules that the second of two programs has loaded; they may print nothing."""
    program = f"import sys, json\n{first}\nbefore = set(sys.modules)\n{then}\nnew = set(sys.modules) - before"
    command = [sys.executable, "-W", "error", "-c", f"{program}\nprint(json.dumps(sorted(new)))"]
    return set(json.loads(subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout))


def test_the_plug_in_is_found_and_asked_without_torch() -> None:
    then = "from attnkit_torch.plugin import attnkit_register_backends as hook; assert hook().available() is None"
    names = loaded("", then)
    assert "attnkit_torch.plugin" in names
    assert "torch" not in names


def test_an_ordinary_call_loads_no_compiler() -> None:
    """They take seconds to import."""
    names = loaded("import torch; x = torch.ones(1, 2, 3, 4)", "import attnkit; attnkit.attention(x, x, x)")
    assert "attnkit_torch.backend" in names
    assert names & COMPILERS == set()


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("2.4.1", "torch 2.4 is installed, 2.5 or newer is needed"),
        ("1.13.1+cu117", "torch 1.13 is installed, 2.5 or newer is needed"),
        ("2.5.0", None),
        ("2.13.0+cpu", None),
        ("3.0.0a0+git1234567", None),
        ("unknown", None),
    ],
)
def test_an_old_torch_cannot_run_here(monkeypatch, version, reason) -> None:
    monkeypatch.setattr(plugin, "version", lambda name: version)
    assert plugin.attnkit_register_backends().available() == reason


def test_a_torch_without_metadata_is_given_a_try(monkeypatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(plugin, "version", version)
    assert plugin.attnkit_register_backends().available() is None
