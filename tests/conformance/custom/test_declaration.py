"""Declarations: how they are read, what is refused, and what stands for them elsewhere."""

import json

import numpy as np
import pytest

import attnkit as ak
from attnkit.numerics import numerics_for
from attnkit_conformance.custom import CustomNumerics, arithmetic_of, label_of

from .conftest import DEVICES, EXAMPLE, block, device, fixed

TOML = """
name = "a device"
dtype = "float32"
keys_per_tile = 64

[stages.exp]
format = { kind = "fixed", integer = 1, fraction = 16, signed = false }
rounding = "floor"
absolute = 1e-5
"""


def made(**changes) -> CustomNumerics:
    return CustomNumerics.model_validate({"name": "d", "dtype": "float32", "stages": {}, **changes})


def test_json_and_toml_are_the_same(tmp_path) -> None:
    (tmp_path / "d.toml").write_text(TOML)
    told = CustomNumerics.load(tmp_path / "d.toml")
    (tmp_path / "d.json").write_text(told.text)
    assert CustomNumerics.load(tmp_path / "d.json") == told
    assert told.stages.exp.rounding == "floor"
    assert told.stages.product.format.kind == "exact"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": {"product": block(8, 16)}}, "stages.product: a running sum cannot be held in block"),
        ({"stages": {"accumulator": block(8, 16)}}, "stages.accumulator: a running sum cannot be held in block"),
        ({"division": "before", "keys_per_tile": 4}, "division: weights are divided before only where all are known"),
        ({"stages": {"exp": fixed(0, 0)}}, r"integer \+ fraction must be 1 or more, got 0 \+ 0"),
        ({"stages": {"exp": {"rounding": "sideways"}}}, "rounding"),
        ({"stages": {"exp": {"relative": -0.1}}}, "relative"),
        ({"stages": {"exp": {"absolute": float("nan")}}}, "absolute"),
        ({"stages": {"softmax": {}}}, "softmax"),
        ({"dtype": "int8"}, "dtype"),
        ({"name": ""}, "name"),
        ({"tolerance": 1.0}, "tolerance"),
    ],
    ids=str,
)
def test_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changes)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_file_that_is_none_is_refused(tmp_path, text) -> None:
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(ValueError, match=r"."):
        CustomNumerics.load(tmp_path / "d.json")


def test_the_verdict_names_the_whole_declaration() -> None:
    one = device("fixed")
    told = json.loads(one.text)
    told["stages"]["output"]["format"]["fraction"] = 13
    other = CustomNumerics.model_validate(told)
    assert one.verdict.startswith("CUSTOM ")
    assert len(one.verdict) == len("CUSTOM ") + 12
    assert other.verdict != one.verdict
    assert CustomNumerics.model_validate_json(one.text).verdict == one.verdict
    assert CustomNumerics.load(EXAMPLE / "numerics.json").verdict == "CUSTOM 25dcffdc026e"  # stays as long as it does


def test_what_stands_in_capabilities() -> None:
    own = device("half")
    assert own.declared == {"float16": own.text}
    assert arithmetic_of(own.text, "float16") == own
    assert label_of(own) == own.verdict
    assert label_of(arithmetic_of("fa-16", "float16")) == "fa-16"
    assert arithmetic_of("fa-16", "float16") is numerics_for("fa-16", "float16")
    with pytest.raises(ak.DTypeError, match="'half' is for arrays of float16, got float32"):
        arithmetic_of(own.text, "float32")
    with pytest.raises(ValueError, match="numerics must be one of"):
        arithmetic_of("half", "float16")


@pytest.mark.parametrize("name", DEVICES)
def test_formats_hold_what_they_say(name) -> None:
    """The ends of each format are numbers of it, and half a step is what rounding to the nearest may cost there."""
    for _, stage in device(name).stages:
        low, high = stage.format.range
        if stage.format.kind == "fixed":
            step = 2.0**-stage.format.fraction
            assert (high + step) / step == 2.0 ** (stage.format.integer + stage.format.fraction)
            assert stage.format.half(np.array([1.0])) == step / 2
        assert low <= 0 < high
