"""``python -m benchmarks [NAME ...] [--json PATH]``: measure the bars and print a table.

Exit code 1 where a bar is missed. Ratios are of medians taken in turns in one process; absolute times are the least of
many rounds, since noise only adds.

``python -m benchmarks crosscheck`` and ``crosscheck-faults`` compare backends over thousands of requests.

``python -m benchmarks soak [--steps N] [--seed N]``: use caches at random instead; exit code 1 where one fails.
"""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from benchmarks import (
    cache_models,
    caches,
    crosscheck,
    decode,
    field,
    hf_generate,
    overhead,
    prefill,
    soak,
    torch_backend,
)
from benchmarks.results import Benchmark, Result, table

BENCHMARKS: dict[str, Benchmark] = {
    "torch": prefill.against_torch,
    "textbook": prefill.against_textbook,
    "memory": prefill.memory,
    "small-call": overhead.small_call,
    "new-signature": overhead.new_signature,
    "decode": decode.against_reading,
    "growth": decode.grows_with_the_read,
    "append": decode.append_is_flat,
    "model": decode.real_model,
    "caches": caches.decode_steps,
    "fork": caches.fork,
    "cache-models": cache_models.decode,
    "torch-prefill": torch_backend.prefill,
    "torch-decode": torch_backend.decode,
    "torch-window": torch_backend.window,
    "torch-training": torch_backend.training,
    "torch-small-call": torch_backend.small_call,
    "transformers": hf_generate.against_transformers,
    "field": field.against_torch,
}
_SOAK = "soak"  # only where it is named: it takes as long as it is told to
CROSSCHECKS: dict[str, Benchmark] = {"crosscheck": crosscheck.agreement, "crosscheck-faults": crosscheck.faults}
"""Not measured but shown, and only where they are named."""


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Which of: {', '.join(BENCHMARKS)}; default: all. Or {_SOAK}: random use of caches."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help=f"How many steps {_SOAK} takes.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Where its random numbers begin.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the results there as JSON.")] = None,
) -> None:
    """Measure the bars side by side and print a table."""
    known = {**BENCHMARKS, **CROSSCHECKS, _SOAK: partial(soak.against_lists, steps, seed)}
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    console, results = Console(), []
    console.width = max(console.width, 140)  # a pipe has no width of its own
    for name in names or BENCHMARKS:
        with console.status(name):
            results += list(known[name]())
    console.print(table(results))
    if json_path:
        json_path.write_text(json.dumps(_report(results), indent=2) + "\n")
    raise typer.Exit(any(result.verdict == "missed" for result in results))


def _report(results: list[Result]) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": _version("torch"),
        "attnkit": _version("attnkit"),
        "results": [result.to_dict() for result in results],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    typer.run(main)
