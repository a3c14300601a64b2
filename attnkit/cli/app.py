"""The command line put together; ``main`` is the script ``attnkit``."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from attnkit.cli.backends import backends
from attnkit.cli.cache import plan
from attnkit.cli.commands import Commands
from attnkit.cli.explain import explain
from attnkit.cli.generate import generate
from attnkit.cli.output import reports_errors
from attnkit.cli.score import score

app = typer.Typer(
    name="attnkit",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback is for a bug report, and plain text copies best
)
cache_commands = typer.Typer(help="Plan KV caches.", no_args_is_help=True)
app.add_typer(cache_commands, name="cache")

for _command in (backends, explain, generate, score):
    app.command()(reports_errors(_command))
cache_commands.command()(reports_errors(plan))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("attnkit"))
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """One attention contract, any backend, and proof that they agree."""


def main() -> None:
    """Run the command line."""
    app()
