"""What ``attnkit`` finds through its entry-point group: the commands of the suite, none of them imported yet."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

_NEEDED = ("hypothesis", "jinja2")  # looked for at once, lest a long run end in an error


def conform() -> typer.Typer:
    """Hold a backend to the contract: checks, verdict, report.

    Raises
    ------
    ImportError
        If a package of the extra ``conformance`` is missing.
    """
    needed(*_NEEDED)
    from attnkit_conformance.cli.app import app

    return app


def crosscheck() -> typer.Typer:
    """Put the same requests to two implementations, and say which one is wrong.

    Raises
    ------
    ImportError
        If a package of the extra ``conformance`` is missing.
    """
    needed(*_NEEDED)
    from attnkit_conformance.crosscheck.cli import app

    return app


def record() -> typer.Typer:
    """Run something, and record its attention calls for another machine.

    Raises
    ------
    ImportError
        If a package of the extra ``conformance`` is missing.
    """
    needed(*_NEEDED)
    from attnkit_conformance.recording.cli import app

    return app


def vectors() -> typer.Typer:
    """Write golden vectors, with what they must give and how nearly, and verify answers to them.

    Raises
    ------
    ImportError
        If a package of the extra ``conformance`` is missing.
    """
    needed(*_NEEDED, "mpmath")
    from attnkit_conformance.vectors.cli import app

    return app


def needed(*packages: str) -> None:
    """Raise ``ImportError`` unless packages of the extra ``conformance`` are there."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} not installed; pip install 'attnkit[conformance]'")
