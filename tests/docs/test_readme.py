"""The README is true: its example runs, and its second command is what the continuous integration runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S)
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


def test_two_commands_of_one_line_set_everything_up() -> None:
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        assert command.count("\n") == 1
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_continuous_integration_runs_both_literally() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    for command in COMMANDS:
        assert f"'{command.strip()}'" in script


def test_example_is_about_twenty_lines() -> None:
    (example,) = EXAMPLES
    assert len([line for line in example.splitlines() if line.strip()]) <= 20


def test_example_runs(tmp_path) -> None:
    command = [sys.executable, "-W", "error", "-c", EXAMPLES[0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "takes the call" in done.stdout
