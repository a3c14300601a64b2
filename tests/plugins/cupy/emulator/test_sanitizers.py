"""Sanitizers find in kernels what they find elsewhere: they are told of the emulator's threads and shared memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RunUnder = Callable[..., tuple[int, str]]

CALLS: dict[str, dict[str, Any]] = {
    "simt": {"kernel": "simt"},
    "mma": {"kernel": "mma", "dtype": "bfloat16", "head_dim": 64},
    "decode": {"kernel": "decode", "queries": 1, "keys": 300},
}


def attend(run_under: RunUnder, sanitizer: str, **plan: Any) -> tuple[int, str]:
    plan = {"batch": 1, "config": {"sanitizer": sanitizer}, **plan}
    return run_under(sanitizer, HERE / "attend.py", json.dumps(plan))


@pytest.mark.parametrize("kernel", CALLS)
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_kernels_are_clean(run_under: RunUnder, kernel: str, sanitizer: str) -> None:
    status, text = attend(run_under, sanitizer, **CALLS[kernel])
    assert status == 0, text


def test_kernels_do_nothing_undefined(run_under: RunUnder) -> None:
    status, text = attend(run_under, "undefined", **CALLS["simt"])
    assert status == 0, text


def test_a_race_in_a_kernel_is_reported_at_its_line(run_under: RunUnder) -> None:
    edit = ["flash_forward_simt.cu", "__syncthreads();", "", 1]
    status, text = attend(run_under, "thread", **CALLS["simt"], edits=[edit])
    assert status == 66
    assert "data race" in text
    assert "flash_forward_simt.cu:" in text


# Each goes unseen otherwise: rows beyond the last are often zero, a row too far lies in the next tile, and hosts read
# misaligned vectors.
DEFECTS = {
    "none": ("", "", "undefined", ""),
    "a row beyond the last is read": ("first + row < count", "true", "address", "heap-buffer-overflow"),
    "a tile is written a row too far": (
        "tile + row * COLUMNS + column",
        "tile + (row + 1) * COLUMNS + column",
        "address",
        "heap-buffer-overflow",
    ),
    "a vector is misaligned": ("tile + row * COLUMNS", "tile + 1 + row * COLUMNS", "undefined", "misaligned address"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_reported_at_its_line(run_under: RunUnder, tmp_path: Path, defect: str) -> None:
    old, new, sanitizer, report = DEFECTS[defect]
    text = (HERE / "tile_sums.cu").read_text()
    assert old in text
    source = tmp_path / "tile_sums.cu"
    source.write_text(text.replace(old, new, 1) if old else text)
    status, told = run_under(sanitizer, HERE / "sum_tiles.py", str(source), sanitizer)
    assert (status == 0) == (defect == "none"), told
    assert report in told
    assert ("tile_sums.cu:" in told) == (defect != "none"), told
