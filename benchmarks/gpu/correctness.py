"""Every kernel against the oracle, the instructions that they use, the conformance suite, and the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import attnkit as ak
from attnkit import reference
from attnkit.call import describe_call, gather_options
from attnkit.numerics import numerics_for
from attnkit_conformance.conformance import run_conformance
from benchmarks.gpu.lines import Line
from benchmarks.gpu.place import Place

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NUMERICS = {"float32": "strict-fp32+sequential", "float16": "fa-16+truncating", "bfloat16": "fa-16+truncating"}
_CAUSAL = ak.Mask.causal()


def instructions(place: Place) -> Iterator[Line]:
    """One kernel for each instruction, through the tests that the emulator and the interpreter pass."""
    which = "cupy" if place.is_gpu else "emulated"
    tests = str(ROOT / "tests" / "plugins" / "cupy" / "test_instructions.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", which, tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["nothing was said"]
    yield Line("instructions", which, "right" if done.returncode == 0 else "wrong", {}, lines[-1])


def kernels(place: Place) -> Iterator[Line]:
    """Each kernel, element type, and set of options, within the error budget of the float64 oracle."""
    from attnkit_cupy import raw

    for kernel in raw.KERNELS:
        for dtype in DTYPES:
            for name, options in _options().items():
                line = _checked(place, kernel, dtype, name, options)
                if line is not None:
                    yield line


def _options() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(1)
    return {
        "plain": {},
        "causal": {"mask": _CAUSAL},
        "window, sinks": {"mask": _CAUSAL & ak.Mask.window(20), "sinks": rng.standard_normal(4).astype(np.float32)},
        "soft-cap, ALiBi": {"mask": _CAUSAL, "softcap": 5.0, "alibi": np.array([0.5, 0.2, 0.1, 0.0], np.float32)},
        "lengths": {"mask": _CAUSAL, "kv_lengths": np.array([90, 17])},
    }


def _checked(place: Place, kernel: str, dtype: str, name: str, options: dict[str, Any]) -> Line | None:
    """Compare one call; ``None`` where the kernel leaves it to another."""
    from attnkit_cupy import raw
    from attnkit_cupy.stored import Stored

    rng = np.random.default_rng(0)
    rows, size = (2 if kernel == "decode" else 45), (32 if place.tiny else 128)
    shapes = (2, 4, rows, size), (2, 2, 100, size), (2, 2, 100, size)
    arrays = [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]
    query, key, value = map(place.array, arrays)
    placed = {each: place.array(item) if each in ("sinks", "alibi") else item for each, item in options.items()}
    request, operands = describe_call(query, key, value, gather_options(**placed), True)
    stored = Stored.of_arrays(key, value, place.runtime)
    if raw.KERNELS[kernel].refusals(request, stored.kind, place.runtime.device):
        return None
    found = raw.attend(place.runtime, request, query, stored, operands, kernel)
    truth = reference.attention(*arrays, **options)
    bound = truth.tolerance(numerics_for(NUMERICS[dtype], dtype))
    with np.errstate(all="ignore"):
        ratio = np.abs(place.host(found.output).astype(np.float64) - truth.output) / bound.output
    worst = float(np.nanmax(np.where(bound.output > 0, ratio, 0)))
    state = "right" if worst <= 1 and np.isfinite(ratio[bound.output > 0]).all() else "wrong"
    return Line("kernels", f"{kernel} {dtype} {name}", state, {"error / bound": worst})


def conformance(place: Place) -> Iterator[Line]:
    """Hold the core of the suite to the backend, in a process of its own."""
    only = ("ATTN-CAUSAL-*",) if place.tiny else ()
    report = run_conformance(place.backend, level=1, only=only, isolated=not place.tiny)
    counts: dict[str, int] = {}
    for result in report.results:
        counts[result.status] = counts.get(result.status, 0) + 1
    bad = [result.id for result in report.results if result.status not in ("PASS", "REFUSED", "NOT_RUN")]
    note = ", ".join(bad[:8])
    yield Line("conformance", "level 1", "wrong" if bad else "right", {k: float(v) for k, v in counts.items()}, note)


def sanitizers(place: Place) -> Iterator[Line]:
    """Run the kernels of a rehearsal under compute-sanitizer's memcheck and racecheck, where it is installed."""
    tool = shutil.which("compute-sanitizer")
    if tool is None or not place.is_gpu:
        yield Line("sanitizers", "compute-sanitizer", "not run", {}, "absent" if place.is_gpu else "needs a GPU")
        return
    for check in ("memcheck", "racecheck"):
        inner = [
            sys.executable,
            "-m",
            "benchmarks.gpu_check",
            "--tiny",
            "--part",
            "kernels",
            "--backend",
            place.backend,
        ]
        command = [tool, "--tool", check, "--error-exitcode", "9", *inner]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=os.environ)
        said = next((line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line), done.stdout[-200:])
        yield Line("sanitizers", check, "right" if done.returncode == 0 else "wrong", {}, said.strip("= "))
