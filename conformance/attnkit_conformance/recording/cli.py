"""``attnkit record DIR -- COMMAND``: run a command of attnkit, or a program, and record its attention calls."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli.output import print_line, reports_errors
from attnkit_conformance.cli.options import wrong_use
from attnkit_conformance.packages.errors import PackageError
from attnkit_conformance.recording.recorder import Tape, record

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@reports_errors
def command(
    folder: Annotated[Path, typer.Argument(help="Where the recording is to be: a new folder.")],
    run: Annotated[list[str], typer.Argument(help="What to run: a command of attnkit, or FILE.py, and its arguments.")],
    calls: Annotated[int, typer.Option(min=1, help="The most calls to write.")] = 10_000,
    megabytes: Annotated[int, typer.Option(min=1, help="The most megabytes to write.")] = 4096,
) -> None:
    """Run something, and record its attention calls for another machine.

    ``attnkit crosscheck numpy DIR`` replays them there.
    """
    words = run[1:] if run[0] == "--" else run
    if not words:
        wrong_use("give what is to be run: attnkit record DIR -- generate 'The capital of France is'")
    status = 0
    try:
        with record(folder, most_calls=calls, most_bytes=megabytes << 20) as tape:
            status = _status(words)
    except PackageError as error:
        wrong_use(str(error))
    _tell(folder, tape)
    if status:
        raise typer.Exit(status)


def _status(words: list[str]) -> int:
    """Run a program, or a command of attnkit; give its exit status."""
    held = sys.argv
    try:
        if words[0].endswith(".py"):
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        else:
            from attnkit.cli.app import app as attnkit

            attnkit(args=words, prog_name="attnkit")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = held
    return 0


def _tell(folder: Path, tape: Tape) -> None:
    who = ", ".join(f"{count} by {name}" for name, count in tape.backends.items()) or "none was made"
    print_line(f"recorded: {folder}: {tape.calls} calls, {tape.nbytes / 2**20:.1f} MiB ({who})")
    for reason, count in tape.left_out.items():
        print_line(f"  {count} left out: {reason}")
