"""Runs CUDA kernels on a CPU, from the source that a GPU runs.

The host's C++ compiler (``CXX``, else g++ or clang++) builds each kernel as a shared library, once for each version of
its sources; ``ATTNKIT_CACHE`` is where they are kept. Threads of a block are fibers, and instructions of a warp are
computed by its last lane to arrive; ``cuda_cpu.hpp`` tells what is modelled. ``ATTNKIT_EMULATOR`` chooses the order in
which threads run, see ``EmulatorConfig``.
"""

from attnkit_cupy.emulator.config import EmulatorConfig
from attnkit_cupy.emulator.graph import CapturingRuntime
from attnkit_cupy.emulator.runtime import EmulatedRuntime

__all__ = ["CapturingRuntime", "EmulatedRuntime", "EmulatorConfig"]
