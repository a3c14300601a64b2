"""The C side of a launch: a kernel's library, and the workers that its blocks run on."""

from __future__ import annotations

import ctypes
import struct
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from attnkit_cupy.emulator.config import EmulatorConfig
from attnkit_cupy.emulator.marshal import Parameter, Signature
from attnkit_cupy.runtime import LaunchError

_SCHEDULES = {"greedy": 0, "random": 1, "priority": 2}
_COPIES = {"lazy": 0, "eager": 1, "mixed": 2}
_CONFIG = struct.Struct("7I3iQ")  # LaunchConfig of worker.hpp
_STATS = struct.Struct("9Q")  # Stats of worker.hpp
_ERROR_BYTES = 1024


class Stats(NamedTuple):
    """What a launch did, summed over its blocks.

    Attributes
    ----------
    blocks, switches, barriers, collectives
        Blocks run, changes from one thread to another, barriers passed, and instructions of whole warps.
    mma, ldmatrix, ldmatrix_conflicts, cp_async
        Instructions, and how many more times than once banks of shared memory were asked.
    smem_bytes
        The most shared memory that a block took.
    """

    blocks: int
    switches: int
    barriers: int
    collectives: int
    mma: int
    ldmatrix: int
    ldmatrix_conflicts: int
    cp_async: int
    smem_bytes: int


class _Description(ctypes.Structure):
    """KernelDesc of launch.hpp."""

    _fields_ = [
        ("call", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("sizes", ctypes.POINTER(ctypes.c_uint32)),
        ("kinds", ctypes.c_char_p),
        ("worker_bytes", ctypes.c_uint64),
    ]


class _Crew:
    """Workers for one launch at a time, and where it leaves what it has to say."""

    def __init__(self, library: ctypes.CDLL, count: int) -> None:
        self.workers = (ctypes.c_void_p * count)(*(library.cuda_cpu_new_worker() for _ in range(count)))
        if not all(self.workers):
            raise MemoryError("no address space is left for the emulator's stacks; take fewer workers")
        self.error = ctypes.create_string_buffer(_ERROR_BYTES)
        self.stats = ctypes.create_string_buffer(_STATS.size)


# Workers keep their stacks from launch to launch, whatever the kernel; concurrent launches have crews of their own.
# By sanitizer and size, since both change what a worker is, and how many there are.
_idle: defaultdict[tuple[str | None, int, int], list[_Crew]] = defaultdict(list)


class KernelLibrary:
    """A kernel that was built."""

    def __init__(self, path: Path, config: EmulatorConfig) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.cuda_cpu_new_worker.restype = ctypes.c_void_p
        self._launch = self._library.cuda_cpu_launch
        text, memory = ctypes.c_char_p, ctypes.c_void_p
        self._launch.argtypes = [text, text, memory, text, ctypes.c_size_t, text]
        self._config = config
        found = _Description.in_dll(self._library, "cuda_cpu_kernel")
        self._idle = _idle[config.sanitizer, found.worker_bytes, config.workers]
        self.signature = Signature([Parameter(chr(found.kinds[i]), found.sizes[i]) for i in range(found.count)])

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int, arguments: bytes) -> Stats:
        """Run every block of a grid, both in three dimensions.

        Raises
        ------
        LaunchError
            With what the kernel did wrong.
        """
        config = self._config
        workers = min(config.workers, grid[0] * grid[1] * grid[2])
        how = _SCHEDULES[config.schedule], _COPIES[config.copies], workers, config.seed
        try:
            crew = self._idle.pop()
        except IndexError:  # all are at work, or there is none yet
            crew = _Crew(self._library, config.workers)
        packed = _CONFIG.pack(*grid, *block, shared_mem, *how)
        failed = self._launch(packed, arguments, crew.workers, crew.error, _ERROR_BYTES, crew.stats)
        error, stats = crew.error.value, Stats(*_STATS.unpack(crew.stats.raw))
        self._idle.append(crew)
        if failed:
            raise LaunchError(error.decode())
        return stats
