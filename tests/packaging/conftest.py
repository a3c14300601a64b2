"""Where the checkout lies, and how its Python is run from outside of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]


@pytest.fixture(scope="session")
def checkout() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def python() -> Run:
    """Run this Python with some arguments in a folder; gives its output, fails with it."""

    def run(*arguments: str, folder: Path, path: Path | None = None) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
        environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=900)
        if done.returncode:
            pytest.fail(f"{' '.join(command)} gave {done.returncode}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}")
        return done.stdout

    return run
