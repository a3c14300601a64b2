"""Commands of other packages: found through the entry-point group ``attnkit.commands``, loaded when they are named.

An entry point names a function without arguments that gives a ``typer.Typer``. The first line of its docstring stands
in ``attnkit --help``, so its module must be cheap to import: what is heavy is imported inside the function.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from attnkit.cli.output import WRONG_USE, console

GROUP = "attnkit.commands"
_EVERYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


class Commands(TyperGroup):
    """The commands of attnkit, and after them those of other packages, which are looked for when they are needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Give the names of all commands; attnkit's own come first, and no other can take their place."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(_points().names) - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give a command by its name, or ``None``."""
        return super().get_command(ctx, cmd_name) or _passing_on(cmd_name)


def _points() -> Any:
    return entry_points(group=GROUP)


def _passing_on(name: str) -> Any:
    """Give a command that hands all of its arguments to an app which is made at its first use."""
    points = tuple(_points().select(name=name))
    if not points:
        return None
    make, summary = _maker(points)
    stand_in = typer.Typer(add_completion=False)

    @stand_in.command(name, help=summary, add_help_option=False, context_settings=_EVERYTHING)
    def pass_on(context: typer.Context) -> None:
        make()(args=context.args, prog_name=context.command_path)

    return typer.main.get_command(stand_in)


def _maker(points: tuple[EntryPoint, ...]) -> tuple[Callable[[], Any], str]:
    """Give what makes the app, and its summary; where that is broken, both say so."""
    if len(points) > 1:
        return _failing(f"two packages have a command of this name: {', '.join(map(_source, points))}")
    (point,) = points
    try:
        load = point.load()
    except Exception as error:  # a package may fail in any way, and must not hide the others
        return _failing(f"{_source(point)} cannot be loaded: {type(error).__name__}: {error}")

    def make() -> Any:
        try:
            return load()
        except Exception as error:
            _fail(f"{_source(point)} cannot be loaded: {type(error).__name__}: {error}")

    return make, (load.__doc__ or "").strip().partition("\n")[0]


def _failing(message: str) -> tuple[Callable[[], NoReturn], str]:
    return lambda: _fail(message), message


def _fail(message: str) -> NoReturn:
    console(stderr=True).print(f"attnkit: {message}", markup=False)
    raise typer.Exit(WRONG_USE)


def _source(point: EntryPoint) -> str:
    distribution = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    return f"{point.value}{distribution}"
