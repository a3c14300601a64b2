"""Whether CuPy and a GPU can be used here, found out without importing CuPy, and what to do if not."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Any, NamedTuple

LEAST_ARCH = 75
"""The oldest architecture that the kernels are compiled for."""

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_EMULATOR = "backend='cuda-emulated' runs the same kernels on a CPU"


class Driver(NamedTuple):
    """What the CUDA driver says.

    Attributes
    ----------
    version
        The newest CUDA that it runs, such as ``(13, 0)``.
    error
        What starting it gave; 0 is success.
    archs
        Compute capability times ten of each device.
    """

    version: tuple[int, int]
    error: int
    archs: tuple[int, ...]


def why_not() -> str | None:
    """Give ``None`` where CuPy can run here, else the reason and its remedy."""
    if find_spec("cupy") is None:
        return "CuPy is not installed"
    driver = ask_driver()
    if driver is None:
        return f"there is no NVIDIA driver ({_library()} is not found): install one; {_EMULATOR}"
    return _version_complaint(driver, cuda_of_cupy()) or _device_complaint(driver)


def _version_complaint(driver: Driver, cuda: int | None) -> str | None:
    if cuda is None or driver.version[0] >= cuda:
        return None
    found = ".".join(map(str, driver.version))
    return (
        f"the NVIDIA driver is too old: it runs CUDA {found}, and CuPy is built for CUDA {cuda}; update the driver, "
        f"or pip uninstall cupy-cuda{cuda}x && pip install cupy-cuda{driver.version[0]}x"
    )


def _device_complaint(driver: Driver) -> str | None:
    if driver.error not in (0, _NO_DEVICE):
        return f"the NVIDIA driver does not start (error {driver.error}): see what nvidia-smi says; {_EMULATOR}"
    if not driver.archs:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        cause = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r})"
        return f"there is no CUDA device{cause}: attach one, or make it visible; {_EMULATOR}"
    if max(driver.archs) < LEAST_ARCH:
        found = ", ".join(f"{arch / 10}" for arch in driver.archs)
        return f"the device is too old: compute capability {found}, {LEAST_ARCH / 10} is needed; {_EMULATOR}"
    return None


def cuda_of_cupy() -> int | None:
    """Give the major version of CUDA that CuPy was built for, by the name of its package; ``None``: not told by it."""
    for distribution in distributions():
        name = str(distribution.metadata["Name"] or "").lower()
        if name.startswith("cupy-cuda") and name.endswith("x"):
            return int(name.removeprefix("cupy-cuda").removesuffix("x"))
    return None


@cache  # starting the driver takes long
def ask_driver() -> Driver | None:
    """Ask the driver; ``None`` where there is none."""
    try:
        library: Any = ctypes.CDLL(_library())
        number = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(number)):
            return None
        version = number.value // 1000, number.value % 1000 // 10
        error = int(library.cuInit(0))
        return Driver(version, error, () if error else _archs(library))
    except (OSError, AttributeError):
        return None


def _archs(library: Any) -> tuple[int, ...]:
    count, major, minor = (ctypes.c_int() for _ in range(3))
    library.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for device in range(count.value):
        library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        found.append(10 * major.value + minor.value)
    return tuple(found)


def _library() -> str:
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
