"""Place: where a check runs, on a GPU or in the emulator; and how much there is to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import attnkit as ak

Array = Any
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Place:
    """A backend of the CuPy plug-in.

    Attributes
    ----------
    backend
        ``"cupy"`` or ``"cuda-emulated"``.
    tiny
        Whether the sizes are those of a rehearsal.
    """

    backend: str
    tiny: bool

    @property
    def runtime(self) -> Any:
        """What runs its kernels."""
        return ak.get_backend(self.backend).runtime  # type: ignore[attr-defined]

    @property
    def is_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.backend == "cupy"

    def array(self, array: np.ndarray[Any, Any]) -> Array:
        """Give an array of the backend."""
        return ak.get_backend(self.backend).from_numpy(array)

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        """Give an array on the host."""
        return ak.get_backend(self.backend).to_numpy(array)

    def wait(self) -> None:
        """Let the device finish."""
        if self.is_gpu:
            self.runtime.xp.cuda.get_current_stream().synchronize()

    def seconds(self, *works: Work, turns: int = 7) -> list[float]:
        """Time works in turns: the median of each, in seconds a call; short ones are repeated until they are not."""
        repeats = [self._repeats(work) for work in works]
        times: list[list[float]] = [[] for _ in works]
        for _ in range(turns):
            for work, repeat, taken in zip(works, repeats, times, strict=True):
                taken.append(self._once(work, repeat))
        return [median(taken) for taken in times]

    def _repeats(self, work: Work) -> int:
        self._once(work, 1)  # builds what has to be built
        least = 0.001 if self.tiny else 0.02
        return max(1, min(1000, round(least / max(self._once(work, 1), 1e-7))))

    def _once(self, work: Work, repeat: int) -> float:
        self.wait()
        start = perf_counter()
        for _ in range(repeat):
            work()
        self.wait()
        return (perf_counter() - start) / repeat
