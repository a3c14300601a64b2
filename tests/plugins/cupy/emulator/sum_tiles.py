"""Run a copy of ``tile_sums.cu``, named by the first argument, built with the sanitizer named by the second."""

from __future__ import annotations

import sys

import numpy as np

from attnkit_cupy.emulator import EmulatedRuntime, EmulatorConfig

ROWS, COLUMNS = 20, 64

if __name__ == "__main__":
    source, sanitizer = sys.argv[1:]
    runtime = EmulatedRuntime(EmulatorConfig(workers=1, sanitizer=sanitizer))
    # The first of several in memory: what lies behind the last may not be there at all, which no red zone can tell.
    several = [np.ones((ROWS, COLUMNS), np.float32) for _ in range(8)]
    rows = min(several, key=lambda array: array.ctypes.data)
    sums = np.zeros(COLUMNS, np.float32)
    kernel = runtime.module(source, ["tile_sums"]).get_function("tile_sums")
    kernel((1,), (COLUMNS,), (rows, sums, np.int32(ROWS)), shared_mem=2 * 16 * 4 * COLUMNS)
    sys.exit(0 if (sums == ROWS).all() else 3)
