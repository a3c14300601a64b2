from __future__ import annotations

import json

import attnkit as ak
from attnkit.registry import registry


def test_lists_what_runs_here(attnkit) -> None:
    result = attnkit("backends")
    assert result.exit_code == 0
    line = next(line for line in result.output.splitlines() if line.startswith("numpy"))
    assert line.split()[1] == "yes"
    assert "attnkit" in line
    assert "numpy.ndarray on cpu" in line


def test_says_why_not_and_what_mends_it(attnkit, absent) -> None:
    output = attnkit("backends").output
    assert "absent does not run here: the package absent is not installed" in output
    assert "pip install 'attnkit-absent[all]'" in output  # square brackets are not markup


def test_json_has_every_field(attnkit, absent) -> None:
    records = {record["name"]: record for record in json.loads(attnkit("backends", "--json").output)}
    assert records["numpy"]["available"] is True
    assert records["numpy"]["paths"] == ["tiled", "decode", "dense"]
    assert records["numpy"]["contract_version"] is None
    assert records["absent"] == {
        "name": "absent",
        "source": "BackendSpec",
        "available": False,
        "reason": "the package absent is not installed",
        "install_hint": "pip install 'attnkit-absent[all]'",
        "summary": "Never there.",
        "owns": [["absent.Array", "*"]],
        "paths": [],
        "contract_version": None,
        "automatic": None,
    }


def test_loading_tells_more_and_finds_what_breaks_late(attnkit) -> None:
    def broken() -> None:
        raise OSError("libnothing.so is missing")

    ak.register(ak.BackendSpec("late", broken))
    try:
        listed, loaded = (
            {record["name"]: record for record in json.loads(attnkit("backends", "--json", *more).output)}
            for more in ((), ("--load",))
        )
    finally:
        registry.unregister("late")
    assert listed["late"]["available"] is True
    assert loaded["late"]["available"] is False
    assert "libnothing.so is missing" in loaded["late"]["reason"]
    assert loaded["numpy"]["contract_version"] == "1.0"
    assert loaded["numpy"]["automatic"] is True


def test_pipes_get_one_line_a_row_and_no_colour(attnkit) -> None:
    output = attnkit("backends").output
    assert "\x1b" not in output
    assert len([line for line in output.splitlines() if line.startswith("torch ")]) <= 2  # the row, and its reason
