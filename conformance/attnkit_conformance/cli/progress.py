"""Progress of a run, on standard error: a bar on a terminal, a line now and then in a log; failures as they come."""

from __future__ import annotations

import time
from collections import Counter
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from attnkit.cli.output import console
from attnkit_conformance.reports.kinds import KINDS, Kind, kind_of
from attnkit_conformance.results import Result

_EVERY = 10.0  # seconds between the lines of a log
_TOLD = 20  # failures that are told as they come; the summary counts the rest


class Watch:
    """Shows results as they come; a context manager, whose ``add`` is an ``on_result``.

    Parameters
    ----------
    total
        How many results there will be, if that is known.
    """

    def __init__(self, total: int | None) -> None:
        self._total, self._counts = total, Counter[Kind]()
        self._console = console(stderr=True)
        self._started = self._told = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description:<18}", style="bold"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("opening", total=total, counts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def add(self, result: Result) -> None:
        """Take a result."""
        kind = kind_of(result)
        self._counts[kind] += 1
        if kind == "failed" and self._counts[kind] <= _TOLD:
            self._say(f"{result.status} {result.id}\n     {_first_line(result.message)}", style="red")
        self._bar.update(self._task, advance=1, description=result.requirement, counts=self._words())
        if self._bar.disable and time.monotonic() - self._told > _EVERY:
            self._told = time.monotonic()
            done, seconds = self._counts.total(), self._told - self._started
            of = "" if self._total is None else f" of {self._total}"
            self._say(f"{done:6}{of}, {seconds:4.0f} s: {self._words()}; now {result.requirement}")

    def _words(self) -> str:
        return ", ".join(f"{self._counts[kind]} {kind}" for kind in KINDS if self._counts[kind])

    def _say(self, text: str, style: str = "") -> None:
        self._bar.console.print(Text(text, style=style))


def _first_line(message: str) -> str:
    lines = message.strip().splitlines()
    return lines[0][:200] if lines else ""
