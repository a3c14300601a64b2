"""``attnkit conform`` in this process, and backends for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from attnkit.cli.app import app

PLAIN = "attnkit_conformance.selftest.plain:Plain"
WRONG = """
from attnkit_conformance.selftest.plain import Plain


class Wrong(Plain):
    name = "wrong"

    def attention(self, query, key, value, operands, request):
        answer = super().attention(query, key, value, operands, request)
        return answer._replace(output=2 * answer.output)
"""


@pytest.fixture
def conform() -> Callable[..., Result]:
    """Run ``attnkit conform`` with some arguments."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, ["conform", *map(str, arguments)])

    return run


@pytest.fixture
def plain() -> str:
    """A backend that is right."""
    return PLAIN


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend that doubles every output, in a module that lies where the command runs."""
    (tmp_path / "wrong_backend.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    return "wrong_backend:Wrong"
