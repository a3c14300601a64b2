from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

import attnkit_conformance.selftest as selftest
from attnkit_conformance.cli import entry

COMMANDS = ("list", "explain", "run", "report", "verify-report", "diff", "selftest")


def test_help_names_every_command(conform) -> None:
    output = conform("--help").output
    assert all(f" {command} " in output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(conform, command) -> None:
    result = conform(command, "--help")
    assert result.exit_code == 0
    assert f"attnkit conform {command}" in result.output


def test_no_command_is_wrong_use(conform) -> None:
    assert conform().exit_code == 2


def test_missing_extras_are_told_at_once(conform, monkeypatch) -> None:
    monkeypatch.setattr(entry, "find_spec", lambda name: None)
    result = conform("list")
    assert result.exit_code == 2
    assert "hypothesis and jinja2 not installed; pip install 'attnkit[conformance]'" in result.stderr


class Outcome:
    """What ``run_selftest`` gives."""

    def __init__(self, ok: bool) -> None:
        self.ok = ok

    def lines(self) -> Iterator[str]:
        yield "2 faults, 2 caught" if self.ok else "one got through"


@pytest.mark.parametrize("ok", [True, False])
def test_selftest_tells_what_got_through(conform, monkeypatch, ok) -> None:
    def run(on_step: Callable[[str], None], *, full: bool) -> Outcome:
        on_step(f"full {full}")
        return Outcome(ok)

    monkeypatch.setattr(selftest, "run_selftest", run)
    result = conform("selftest", "--full")
    assert result.exit_code == (0 if ok else 1)
    assert result.stdout.strip() == next(Outcome(ok).lines())
    assert result.stderr.strip() == "full True"
    assert json.loads(conform("selftest", "--json").stdout) == {"ok": ok, "lines": [next(Outcome(ok).lines())]}
