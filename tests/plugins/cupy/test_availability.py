"""Why CuPy cannot run here, told exactly and without importing it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from attnkit_cupy import availability
from attnkit_cupy.availability import Driver

H200 = Driver((13, 0), 0, (90,))


@pytest.fixture
def machine(monkeypatch: Any) -> Any:
    """Set up a machine: whether CuPy is installed, for which CUDA, and what the driver says."""

    def setup(installed: bool = True, cuda: int | None = 13, driver: Driver | None = H200) -> None:
        monkeypatch.setattr(availability, "find_spec", lambda name: object() if installed else None)
        monkeypatch.setattr(availability, "cuda_of_cupy", lambda: cuda)
        monkeypatch.setattr(availability, "ask_driver", lambda: driver)

    return setup


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"cuda": 12},
        {"cuda": None},
        {"driver": Driver((12, 4), 0, (75,)), "cuda": 12},
        {"driver": Driver((13, 0), 0, (61, 80))},
    ],
)
def test_a_machine_that_can(machine: Any, facts: dict[str, Any]) -> None:
    machine(**facts)
    assert availability.why_not() is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"installed": False}, "CuPy is not installed"),
        ({"driver": None}, "there is no NVIDIA driver .* is not found.: install one; backend='cuda-emulated'"),
        (
            {"driver": Driver((12, 4), 0, (90,))},
            "driver is too old: it runs CUDA 12.4, and CuPy is built for CUDA 13; update the driver, or .*cupy-cuda12x",
        ),
        ({"driver": Driver((13, 0), 999, ())}, "does not start .error 999.: see what nvidia-smi says"),
        ({"driver": Driver((13, 0), 100, ())}, "there is no CUDA device: attach one"),
        ({"driver": Driver((13, 0), 0, ())}, "there is no CUDA device: attach one"),
        ({"driver": Driver((12, 0), 0, (61, 70)), "cuda": 12}, "too old: compute capability 6.1, 7.0, 7.5 is needed"),
    ],
)
def test_a_machine_that_cannot(machine: Any, monkeypatch: Any, facts: dict[str, Any], reason: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine(**facts)
    found = availability.why_not()
    assert found is not None
    assert re.search(reason, found)


def test_hidden_devices_are_named(machine: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    machine(driver=Driver((13, 0), 100, ()))
    assert "CUDA_VISIBLE_DEVICES is '-1'" in str(availability.why_not())


class Library:
    """A driver of a machine with two devices."""

    def __init__(self, error: int = 0) -> None:
        self.error = error

    def cuDriverGetVersion(self, number: Any) -> int:  # noqa: N802  # CUDA's name
        number._obj.value = 12080
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802  # CUDA's name
        return self.error

    def cuDeviceGetCount(self, number: Any) -> int:  # noqa: N802  # CUDA's name
        number._obj.value = 2
        return 0

    def cuDeviceGetAttribute(self, number: Any, attribute: int, device: int) -> int:  # noqa: N802  # CUDA's name
        number._obj.value = {75: (8, 12), 76: (9, 0)}[attribute][device]
        return 0


@pytest.mark.parametrize(
    ("library", "driver"),
    [(Library(), Driver((12, 8), 0, (89, 120))), (Library(100), Driver((12, 8), 100, ())), (object(), None)],
)
def test_the_driver_is_asked_in_its_own_words(monkeypatch: Any, library: Any, driver: Driver | None) -> None:
    monkeypatch.setattr(availability.ctypes, "CDLL", lambda name: library)
    assert availability.ask_driver.__wrapped__() == driver


def test_without_a_driver_there_is_nobody_to_ask(monkeypatch: Any) -> None:
    monkeypatch.setattr(availability, "_library", lambda: "libnosuchdriver.so.1")
    assert availability.ask_driver.__wrapped__() is None


@pytest.mark.parametrize(
    ("names", "cuda"), [(["numpy", "cupy-cuda12x"], 12), (["CuPy-cuda13x"], 13), (["cupy"], None), ([None], None)]
)
def test_the_package_tells_its_cuda(monkeypatch: Any, names: list[Any], cuda: int | None) -> None:
    class Distribution:
        def __init__(self, name: Any) -> None:
            self.metadata = {"Name": name}

    monkeypatch.setattr(availability, "distributions", lambda: map(Distribution, names))
    assert availability.cuda_of_cupy() == cuda


def test_nothing_is_imported_to_find_out() -> None:
    program = (
        "import sys; from attnkit_cupy import plugin; specs = plugin.attnkit_register_backends(); "
        "[spec.available() for spec in specs]; assert not {'cupy', 'torch'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
