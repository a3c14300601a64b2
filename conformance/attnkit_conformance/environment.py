"""What a backend ran on: versions of Python, of libraries and of the system, and the hardware, in words."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

import attnkit as ak

_GPU_QUESTION = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


def environment(capabilities: ak.Capabilities, device: str = "") -> dict[str, str]:
    """Describe this process: what the backend in it, which declares ``capabilities``, depends on.

    Of the array libraries that it takes, those are named that it has loaded.
    """
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpus": str(os.cpu_count()),
        "attnkit": version("attnkit"),
        "numpy": np.__version__,
    }
    loaded = {name: sys.modules[name] for name in sorted(capabilities.libraries) if name in sys.modules}
    found |= {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded.items()}
    found["threads"] = ", ".join(_pool(pool) for pool in threadpool_info()) or "unknown"
    if device:
        found["device"] = device
    if capabilities.devices - {"cpu"} and (gpu := _gpu()):
        found["gpu"] = gpu
    return found


def _pool(pool: dict[str, object]) -> str:
    return f"{pool['internal_api']} {pool['version'] or ''}".strip() + f" with {pool['num_threads']}"


def _cpu() -> str:
    """Give the name of the processor; only Linux has to be asked by way of a file."""
    place = Path("/proc/cpuinfo")
    lines = place.read_text("utf-8", "replace").splitlines() if place.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpu() -> str:
    if shutil.which(_GPU_QUESTION[0]) is None:
        return ""
    done = subprocess.run(_GPU_QUESTION, capture_output=True, text=True, timeout=20, check=False)
    return "; ".join(done.stdout.splitlines()) if done.returncode == 0 else ""
