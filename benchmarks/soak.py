"""Soak: any number of random steps over every layout, codec and backend of caches, against plain lists."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import typer

import attnkit as ak
from attnkit_conformance.soaking import settings, soak
from benchmarks.results import Result

_LIFE = 200  # steps of one cache
_SHOWN_EVERY = 60  # seconds


def against_lists(steps: int, seed: int) -> Iterator[Result]:
    """Take random steps until one fails, which ends the program with a shorter one that fails too."""
    every = settings([name for name in ("numpy", "torch") if _is_here(name)])
    taken: Counter[str] = Counter()
    start = shown = time.perf_counter()
    for life in range(-(-steps // _LIFE)):
        try:
            taken += soak(every[life % len(every)], seed + life, min(_LIFE, steps - taken.total()))
        except AssertionError as error:
            print(error)
            raise typer.Exit(1) from error
        if time.perf_counter() - shown > _SHOWN_EVERY:
            shown = time.perf_counter()
            print(f"{taken.total()} steps of {steps}, {taken.total() / (shown - start):.0f} a second", flush=True)
    each = 1000 * (time.perf_counter() - start) / max(taken.total(), 1)
    for name, count in taken.most_common():
        print(f"{count:>9} {name}")
    yield Result(f"{taken.total()} random steps over {len(every)} kinds of caches", each, None, unit="ms a step")


def _is_here(backend: str) -> bool:
    try:
        ak.get_backend(backend)
    except ak.BackendUnavailableError:
        return False
    return True
