"""``python -m benchmarks.gpu_check``: everything worth asking of a GPU, in one command of under eight minutes.

First what is right: each instruction, each kernel against the oracle, the conformance suite, the sanitizers. Then what
is fast: prefill against torch's kernels, decoding against the bandwidth of a copy. ``--tiny --backend cuda-emulated``
rehearses all of it without a GPU. Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.gpu import correctness, graphs, speed
from benchmarks.gpu.lines import Line, markdown, table
from benchmarks.gpu.place import Place

PARTS: dict[str, Callable[[Place], Iterator[Line]]] = {
    "instructions": correctness.instructions,
    "kernels": correctness.kernels,
    "graphs": graphs.replayed,
    "prefill": speed.prefill,
    "decode": speed.decode,
    "sanitizers": correctness.sanitizers,
    "conformance": correctness.conformance,
}


def main(
    backend: Annotated[str, typer.Option(help="cupy, or cuda-emulated for a rehearsal.")] = "cupy",
    tiny: Annotated[bool, typer.Option("--tiny", help="Take the smallest shapes there are.")] = False,
    part: Annotated[list[str] | None, typer.Option(help=f"Which of: {', '.join(PARTS)}; default: all.")] = None,
    seconds: Annotated[float, typer.Option(help="When to stop asking.")] = 460,
    out: Annotated[Path | None, typer.Option(help="Folder for the table and the JSON.")] = None,
) -> None:
    """Check and measure the CUDA kernels."""
    unknown = sorted(set(part or ()) - set(PARTS))
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    console, place, facts = Console(width=170), Place(backend, tiny), _facts(backend)
    console.print(facts)
    lines: list[Line] = []
    deadline = perf_counter() + seconds
    for name in part or PARTS:
        for line in _asked(name, place, deadline):
            lines.append(line)
            console.print(*line.cells)
    console.print(table(lines))
    if out is not None:
        _write(out, facts, lines)
    raise typer.Exit(any(line.state == "wrong" for line in lines))


def _asked(name: str, place: Place, deadline: float) -> Iterator[Line]:
    """Give the lines of one part; an error is one of them, and takes no other part down."""
    try:
        for line in PARTS[name](place):
            yield line
            if perf_counter() > deadline:
                yield Line(name, "the rest", "not run", {}, "out of time")
                return
    except Exception as error:
        traceback.print_exc()
        yield Line(name, "an error", "wrong", {}, f"{type(error).__name__}: {str(error)[:300]}")


def _facts(backend: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
    }
    for package in ("attnkit", "cupy-cuda13x", "cupy-cuda12x", "torch", "numpy"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    if backend == "cupy":
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        facts |= {
            "device": properties["name"].decode(),
            "driver": cupy.cuda.runtime.driverGetVersion(),
            "runtime": cupy.cuda.runtime.runtimeGetVersion(),
            "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        }
    return facts


def _write(folder: Path, facts: dict[str, Any], lines: list[Line]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"facts": facts, "lines": [line.to_dict() for line in lines]}
    (folder / "gpu-results.json").write_text(json.dumps(data, indent=2) + "\n")
    told = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    (folder / "gpu-results.md").write_text(f"# GPU results\n\n{told}\n{markdown(lines)}")


if __name__ == "__main__":
    typer.run(main)
