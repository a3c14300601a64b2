from __future__ import annotations

import json

import pytest


def test_names_backend_and_path(attnkit) -> None:
    result = attnkit("explain", "--mask", "causal & window(512)", "--kv-heads", "2")
    assert result.exit_code == 0
    assert result.output.startswith("numpy:")
    assert "takes the call (automatic choice)" in result.output


def test_gives_the_reasons_of_the_others(attnkit, absent) -> None:
    output = attnkit("explain").output
    assert "the package absent is not installed" in output
    assert "pip install 'attnkit-absent[all]'" in output


def test_json_is_the_explanation(attnkit) -> None:
    data = json.loads(attnkit("explain", "--queries", "3", "--keys", "5", "--softcap", "30", "--json").output)
    assert data["backend"] == "numpy"
    assert data["request"]["query_length"] == 3
    assert data["request"]["softcap"] == 30


def test_a_path_can_be_asked_for(attnkit) -> None:
    data = json.loads(attnkit("explain", "--backend", "numpy:dense", "--json").output)
    assert (data["backend"], data["path"]) == ("numpy", "dense")


def test_nothing_takes_it_is_a_fault(attnkit) -> None:
    result = attnkit("explain", "--array-type", "nobody.Array")
    assert result.exit_code == 1
    assert "nothing takes the call" in result.output


def test_an_absent_choice_is_a_fault(attnkit, absent) -> None:
    result = attnkit("explain", "--backend", "absent")
    assert result.exit_code == 1
    assert "is not installed" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "nobody"), "no backend named 'nobody'"),
        (("--backend", ","), "no backend named ''"),
        (("--dtype", "int8"), "--dtype must be one of float16, bfloat16, float32, float64, got 'int8'"),
        (("--heads", "8", "--kv-heads", "3"), "--heads must be a multiple of --kv-heads, got 8 and 3"),
        (("--kv-heads", "0"), "--heads must be a multiple of --kv-heads, got 8 and 0"),
        (("--mask", "window(0)"), "left must be >= 1"),
        (("--mask", "causal | window(3)"), "a mask is written like"),
        (("--softcap", "-1"), "--softcap must be a finite number > 0, got -1.0"),
    ],
)
def test_wrong_use_is_one_message(attnkit, arguments, message) -> None:
    result = attnkit("explain", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("attnkit: ")
    assert result.stdout == ""


def test_an_unknown_path_is_wrong_use(attnkit) -> None:
    result = attnkit("explain", "--backend", "numpy:nope")
    assert result.exit_code == 2
    assert "'nope'; available: tiled" in result.stderr
