"""The emulator's configuration."""

from __future__ import annotations

import os

import pytest
from pydantic import ValidationError

from attnkit_cupy.emulator import EmulatedRuntime, EmulatorConfig
from attnkit_cupy.runtime import Device


def test_the_default_is_the_fastest() -> None:
    config = EmulatorConfig.from_environment({})
    assert config == EmulatorConfig()
    assert (config.schedule, config.copies, config.sanitizer) == ("greedy", "lazy", None)
    assert config.workers == len(os.sched_getaffinity(0))


def test_the_environment_sets_fields() -> None:
    config = EmulatorConfig.from_environment({"ATTNKIT_EMULATOR": "schedule=priority  copies=mixed seed=3 workers=2"})
    assert config == EmulatorConfig(schedule="priority", copies="mixed", seed=3, workers=2)


@pytest.mark.parametrize(
    "text", ["schedule=fastest", "seed=-1", "workers=0", "workers=257", "workers=many", "colour=red", "greedy"]
)
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=text.split("=")[0]):
        EmulatorConfig.from_environment({"ATTNKIT_EMULATOR": text})


def test_it_cannot_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        EmulatorConfig().seed = 1  # type: ignore[misc]


def test_the_device_is_what_is_emulated() -> None:
    device = Device(arch=86, sm_count=84, smem_optin=101376)
    assert EmulatedRuntime(EmulatorConfig(device=device)).device == device
