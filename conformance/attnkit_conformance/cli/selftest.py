"""``attnkit conform selftest``: whether the suite still finds what it must find."""

from __future__ import annotations

from typing import Annotated

import typer

from attnkit.cli.output import FAULT, console, print_json, print_line
from attnkit_conformance.cli.options import JsonOption


def selftest(
    full: Annotated[bool, typer.Option("--full", help="Every fault against every item, and the smallest effects.")] = (
        False
    ),
    json: JsonOption = False,
) -> None:
    """Hold the suite to account: its oracles agree, and each backend that is wrong on purpose gets its verdict.

    Exits with 1 where a fault gets through.
    """
    from attnkit_conformance.selftest import run_selftest

    steps = console(stderr=True)
    done = run_selftest(lambda step: steps.print(step, markup=False), full=full)
    lines = list(done.lines())
    if json:
        print_json({"ok": done.ok, "lines": lines})
    else:
        for line in lines:
            print_line(line)
    if not done.ok:
        raise typer.Exit(FAULT)
