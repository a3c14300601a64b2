"""The field: the same causal attention in every library that is installed here, each in a process of its own.

A process measures one library against ``scaled_dot_product_attention`` in turns, so that the ratios can be compared
although libraries bring thread pools that would disturb each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.results import Result
from benchmarks.rivals import RIVALS, SHAPE


def against_torch() -> Iterator[Result]:
    """Every library over ``scaled_dot_product_attention``."""
    for rival in RIVALS:
        yield _measured(rival)


def _measured(rival: str) -> Result:
    batch, heads, length, size = SHAPE
    name = f"{rival} / torch SDPA, causal, B{batch} H{heads} T{length} D{size} float32"
    done = subprocess.run([sys.executable, "-m", "benchmarks.rivals", rival], capture_output=True, text=True)
    if done.returncode:
        return Result(name, None, None, note=f"absent: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Result(name, found["ratio"], None, note=f"largest error {found['error']:.1e}, spread {found['spread']:.0%}")
