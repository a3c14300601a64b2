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
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} not installed; pip install 'attnkit[conformance]'")
    from attnkit_conformance.cli.app import app

    return app
