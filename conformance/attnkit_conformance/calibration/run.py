"""Run: the whole calibration, the zoo and the installed backends."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

import attnkit as ak
from attnkit_conformance.calibration.grid import LONGEST
from attnkit_conformance.calibration.measure import measure_backward, measure_forward
from attnkit_conformance.calibration.results import Results, Row
from attnkit_conformance.calibration.zoo import EVERY, GRADIENT_ZOO, ZOO
from attnkit_conformance.harness.targets import open_target
from attnkit_conformance.subject import Subject

BACKENDS = ("numpy", "torch", "cuda-emulated")
PACKAGES = ("attnkit", "numpy", "ml_dtypes", "torch")

Step = Callable[[str], None]


def calibrate(seeds: int = 3, *, keys: int = LONGEST, on_step: Step = print) -> Results:
    """Measure everything with some seeds each; ``keys`` is the length of the longest rows."""
    return Results(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        environment=_environment(),
        seeds=seeds,
        zoo=tuple(measure_zoo(seeds, keys=keys, on_step=on_step)),
        backends=tuple(measure_backends(seeds, keys=keys, on_step=on_step)),
    )


def measure_zoo(seeds: int, *, keys: int, on_step: Step) -> Iterator[Row]:
    """Measure the algorithms that are correct by construction."""
    for algorithm in ZOO:
        on_step(algorithm.name)
        for dtype in algorithm.dtypes:
            yield from measure_forward(algorithm.make(), algorithm.name, dtype, seeds, keys=keys)
    for algorithm in GRADIENT_ZOO:
        on_step(f"gradients: {algorithm.name}")
        for dtype in algorithm.dtypes:
            yield from measure_backward(algorithm.make(), algorithm.name, dtype, seeds)


def measure_backends(seeds: int, *, keys: int, on_step: Step) -> Iterator[Row]:
    """Measure every path of the first-party backends that run here, in what they declare."""
    for target in targets():
        on_step(target)
        subject = Subject(open_target(target))
        for dtype in EVERY:
            if dtype in subject.capabilities.dtypes:
                yield from measure_forward(subject, target, dtype, seeds, keys=keys)
                if subject.capabilities.grad:
                    yield from measure_backward(subject, target, dtype, seeds)


def targets() -> list[str]:
    """Give every path of the first-party backends that run here."""
    running = [info.name for info in ak.backends() if info.name in BACKENDS and info.available]
    return [f"{name}:{path}" for name in running for path in ak.get_backend(name).paths]


def _environment() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine(), "processor": _processor()}
    return found | {name: _version(name) for name in PACKAGES if _version(name)}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """Name the processor; Linux alone tells more than the architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
