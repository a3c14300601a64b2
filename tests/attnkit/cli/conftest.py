"""How the command line is run, and a backend that cannot run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

import attnkit as ak
from attnkit.cli.app import app
from attnkit.registry import registry

Run = Callable[..., Result]


@pytest.fixture
def attnkit(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``attnkit`` with some arguments; a traceback is a failure of the test."""
    monkeypatch.delenv("ATTNKIT_BACKEND", raising=False)

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def absent() -> Iterator[str]:
    """The name of a backend whose library is not installed."""

    def load() -> ak.Backend:
        raise AssertionError("never loaded")

    ak.register(
        ak.BackendSpec(
            name="absent",
            load=load,
            owns=(("absent.Array", "*"),),
            available=lambda: "the package absent is not installed",
            install_hint="pip install 'attnkit-absent[all]'",
            summary="Never there.",
        )
    )
    yield "absent"
    registry.unregister("absent")
