from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version


def test_version(attnkit) -> None:
    assert attnkit("--version").output.strip() == version("attnkit")


def test_help_names_every_command(attnkit) -> None:
    output = attnkit("--help").output
    for command in ("backends", "cache", "explain", "generate", "score"):
        assert command in output


def test_no_command_is_wrong_use(attnkit) -> None:
    assert attnkit().exit_code == 2


def test_unknown_command_is_wrong_use(attnkit) -> None:
    assert attnkit("nonsense").exit_code == 2


def test_module_is_the_script() -> None:
    done = subprocess.run([sys.executable, "-m", "attnkit", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == version("attnkit")
