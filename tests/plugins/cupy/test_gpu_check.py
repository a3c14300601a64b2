"""The program for machines with a GPU, rehearsed without one, so that no typing error waits for the day of the loan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("kernels", "prefill", "decode", "sanitizers", "conformance")  # the instructions are tests here already


def test_everything_that_is_asked_of_a_gpu_runs_in_the_emulator(tmp_path: Path) -> None:
    parts = [word for part in PARTS for word in ("--part", part)]
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_check",
        "--tiny",
        "--backend",
        "cuda-emulated",
        "--out",
        tmp_path,
        *parts,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads((tmp_path / "gpu-results.json").read_text())["lines"]
    states = {part: {line["state"] for line in lines if line["part"] == part} for part in PARTS}
    assert states == {
        "kernels": {"right"},
        "prefill": {"measured"},
        "decode": {"measured"},
        "sanitizers": {"not run"},
        "conformance": {"right"},
    }
    assert all(ratio > 0 for line in lines for ratio in line["figures"].values() if line["part"] != "conformance")
    table = (tmp_path / "gpu-results.md").read_text()
    assert all(f"| {line['part']} | {line['name']} | {line['state']} |" in table for line in lines)
