"""EmulatorConfig: what device is emulated, and in which order its threads run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from attnkit_cupy.runtime import Device

ENVIRONMENT = "ATTNKIT_EMULATOR"
MOST_WORKERS = 256  # as launch.hpp has it
H200 = Device(arch=90, sm_count=132, smem_optin=227 * 1024)


def _cores() -> int:
    """Count the cores that this process may use, as far as workers go."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


class EmulatorConfig(BaseModel):
    """How kernels are run.

    Attributes
    ----------
    device
        What is emulated; launches that exceed it are refused.
    schedule
        Which thread goes on at a synchronisation: ``"greedy"`` one of the same warp, which is fastest; ``"random"``
        any; ``"priority"`` one of the first warp, in a random order of them, so that some run far ahead of others.
    copies
        When an asynchronous copy lands: ``"lazy"`` where it is waited for, ``"eager"`` at once, ``"mixed"`` either, by
        chance.
    seed
        Of all chance.
    workers
        Operating-system threads that blocks are spread over.
    sanitizer
        What kernels are built with; the process must have been started with its library.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Device = H200
    schedule: Literal["greedy", "random", "priority"] = "greedy"
    copies: Literal["lazy", "eager", "mixed"] = "lazy"
    seed: NonNegativeInt = 0
    workers: int = Field(default_factory=_cores, ge=1, le=MOST_WORKERS)
    sanitizer: Literal["address", "thread", "undefined"] | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read ``ATTNKIT_EMULATOR``, such as ``"schedule=priority copies=mixed seed=3"``; absent fields are default."""
        words = environment.get(ENVIRONMENT, "").split()
        return cls.model_validate_strings(dict(word.partition("=")[::2] for word in words))
