"""What every command prints with: tables for people, JSON for programs, one clear message for errors.

Exit codes: 0 fine, 1 found a fault, 2 wrong use.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnkit.errors import AttnkitError, BackendNotFoundError, DTypeError, ShapeError

FAULT = 1
WRONG_USE = 2
_PIPE_WIDTH = 10_000
P = ParamSpec("P")
R = TypeVar("R")


def console(*, stderr: bool = False) -> Console:
    """Give a console for the present stream: coloured and wrapped on a terminal, one line per row in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=None if stream.isatty() else _PIPE_WIDTH)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print rows under their columns' names."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as text, since square brackets in it are not markup
    console().print(table, soft_wrap=False)


def print_json(data: Any) -> None:
    """Print data as JSON, and nothing else."""
    typer.echo(json.dumps(data, indent=2))


def print_line(text: str) -> None:
    """Print a line as it is; square brackets are not markup."""
    console().print(text, markup=False)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors that a command raises on purpose into one message and an exit code."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (AttnkitError, OSError, OverflowError, ValidationError) as error:
            console(stderr=True).print(f"attnkit: {_message(error)}", markup=False)
            raise typer.Exit(_code(error)) from error

    return guarded


def _message(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"a number is too large: {error}"
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(_fault([*map(str, fault["loc"])], fault["msg"]) for fault in error.errors())


def _fault(place: list[str], message: str) -> str:
    """Tell one fault; what a check of ours says names its argument itself."""
    own = message.removeprefix("Value error, ")
    return f"{'.'.join(place)}: {own}" if place else own


def _code(error: Exception) -> int:
    """Tell what was typed wrongly from what was found wrong."""
    mistyped = ShapeError | DTypeError | BackendNotFoundError | OSError | OverflowError | ValidationError
    return WRONG_USE if isinstance(error, mistyped) else FAULT
