"""Devices that differ in one thing each."""

import json
from pathlib import Path

import pytest

from attnkit_conformance.custom import CustomNumerics

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "fixed-point"


def fixed(integer, fraction, *, signed=True, **more):
    return {"format": {"kind": "fixed", "integer": integer, "fraction": fraction, "signed": signed}, **more}


def floating(mantissa, exponent=8, **more):
    return {"format": {"kind": "float", "mantissa": mantissa, "exponent": exponent}, **more}


def block(mantissa, size, **more):
    return {"format": {"kind": "block", "mantissa": mantissa, "block": size}, **more}


FIXED = {
    "input": fixed(4, 12),
    "product": fixed(10, 20),
    "score": fixed(6, 12),
    "exp": fixed(1, 16, signed=False),
    "weight": fixed(1, 14, signed=False),
    "accumulator": fixed(12, 20),
    "reciprocal": fixed(1, 18, signed=False),
    "output": fixed(4, 12),
}


def rounded(way):
    return {name: {**stage, "rounding": way} for name, stage in FIXED.items()}


DEVICES = {
    "fixed": {"stages": FIXED},
    "fixed, truncated": {"stages": rounded("truncate")},
    "fixed, rounded down": {"stages": rounded("floor")},
    "fixed, rounded up": {"stages": rounded("ceil")},
    "fixed, stochastic": {"stages": rounded("stochastic")},
    "fixed, divided before": {"stages": FIXED, "division": "before"},
    "fixed, in tiles of 3": {"stages": FIXED, "keys_per_tile": 3},
    "fixed, key by key": {"stages": FIXED, "keys_per_tile": 1},
    "tables": {
        "stages": {**FIXED, "exp": {**FIXED["exp"], "absolute": 2e-4}, "reciprocal": floating(20, relative=1e-4)}
    },
    "blocks": {
        "stages": {
            "input": block(11, 16),
            "score": block(14, 16),
            "weight": block(11, 8),
            "output": block(12, 8),
            "product": floating(23),
            "accumulator": floating(23),
        }
    },
    "bfloat16": {
        "dtype": "bfloat16",
        "stages": {
            **{name: floating(23) for name in ("product", "score", "exp", "accumulator", "reciprocal")},
            "weight": floating(7),
            "output": floating(7),
        },
    },
    "half": {
        "dtype": "float16",
        "stages": {name: floating(10, 5) for name in ("score", "exp", "weight", "output")}
        | {"product": floating(23), "accumulator": floating(12, 8, rounding="truncate")},
    },
    "twelve bits without subnormals": {
        "stages": {
            name: {"format": {"kind": "float", "mantissa": 11, "exponent": 6, "subnormals": False}}
            for name in ("input", "score", "exp", "weight", "output")
        }
    },
}


def device(name: str) -> CustomNumerics:
    return CustomNumerics.model_validate({"name": name, "dtype": "float32", **DEVICES[name]})


@pytest.fixture(params=DEVICES)
def numerics(request) -> CustomNumerics:
    return device(request.param)


@pytest.fixture
def declared() -> dict:
    """The declaration of the example."""
    return json.loads((EXAMPLE / "numerics.json").read_text())
