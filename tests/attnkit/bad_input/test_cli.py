"""Wrong use of the command line: exit code 2, one message on standard error, nothing on standard output."""

from __future__ import annotations

import json

import pytest

SIZES = "--kv-heads 1 --head-dim 2"
FAULT, WRONG_USE = 1, 2


TABLE = [
    ("explain --backend nobody", "no backend named 'nobody'; available: "),
    ("explain --backend numpy,nobody", "no backend named 'nobody'"),
    ("explain --mask window(0)", "left must be >= 1 or None for unlimited, got 0"),
    ("explain --mask causal&prefix(2)", "prefix(n) already contains causal"),
    ("explain --mask banded(3)", "there is no kind 'banded'", "causal, chunked, dense"),
    ("explain --mask causal|window(2)", "cannot read 'causal | window(2)'", "'causal & window(512)'"),
    ("explain --mask window(left=", "cannot read 'window(left='"),
    ("explain --mask open('x')", "there is no kind 'open'"),
    ("explain --mask window(2,3,4)", "window(left", "does not take that"),
    ("explain --dtype int8", "--dtype must be one of float16, bfloat16, float32, float64, got 'int8'"),
    ("explain --heads 8 --kv-heads 3", "--heads must be a multiple of --kv-heads, got 8 and 3"),
    ("explain --heads many", "--heads"),
    ("explain --queries -1", "--queries"),
    ("explain --softcap nan", "--softcap must be a finite number > 0, got nan"),
    ("explain --window 3", "--window"),
    ("generate hello --max-tokens 0", "--max-tokens"),
    ("generate hello --temperature -1", "--temperature"),
    ("generate hello --temperature nan", "--temperature"),
    ("generate hello --model nowhere.gguf", "--model", "nowhere.gguf", "No such file"),
    ("generate", "Missing argument"),
    ("score nowhere.txt", "nowhere.txt", "No such file"),
    ("cache plan", "--kv-heads and --head-dim must be given, or --config"),
    ("cache plan --kv-heads 0 --head-dim 2", "--kv-heads"),
    (f"cache plan {SIZES} --dtype int8", "dtype", "'float16', 'bfloat16', 'float32' or 'float64'"),
    (f"cache plan {SIZES} --memory much", "--memory must be an amount such as 8GiB", "got 'much'"),
    (f"cache plan {SIZES} --context -1", "--context"),
    ("cache plan --config nowhere", "nowhere", "No such file"),
    ("cache grow", "No such command 'grow'"),
    ("attend", "No such command 'attend'"),
]


@pytest.mark.parametrize(("line", "parts"), [(row[0], row[1:]) for row in TABLE])
def test_wrong_use(world, attnkit, line, parts) -> None:
    before = world.state()
    result = attnkit(*line.split())
    assert result.exit_code == WRONG_USE
    assert result.stdout == ""
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.stderr
    assert world.state() == before


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\xfa", b"a"], ids=["empty", "not UTF-8", "one token"])
def test_a_text_that_cannot_be_scored(attnkit, tmp_path, tiny_model, content) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(content)
    result = attnkit("score", str(text), "--model", str(tiny_model))
    assert (result.exit_code, result.stdout) == (WRONG_USE, "")
    assert "FILE" in result.stderr


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", '{"model_type": "perceptron"}'])
def test_a_config_that_is_none(attnkit, tmp_path, content) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    result = attnkit("cache", "plan", "--config", str(path))
    assert (result.exit_code, result.stdout) == (WRONG_USE, "")
    assert "--config" in result.stderr


def test_json_of_what_nothing_takes(attnkit) -> None:
    """An impossible request is a fault that was found, not wrong use: the reasons go to standard output, as JSON."""
    result = attnkit("explain", "--json", "--array-type", "nobody.Array", "--device", "cuda:3")
    assert result.exit_code == FAULT
    data = json.loads(result.stdout)
    assert data["backend"] is data["path"] is None
    assert "nobody.Array on cuda:3" in data["error"]
    assert {reason["code"] for reason in data["rejected"]["numpy"]} >= {"libraries", "devices", "not_owner"}
