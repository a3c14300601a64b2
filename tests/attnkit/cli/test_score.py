from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnkit as ak
from attnkit.models import load_model, score

TEXT = "hello world, 12 naïve cafés\r\n"


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_the_score_is_that_of_the_library(attnkit, tiny_model, text, chunk):
    llama, tokenizer = load_model(tiny_model, backend="numpy")
    expected = score(llama, tokenizer.encode(TEXT))
    options = [] if chunk is None else ["--chunk", str(chunk)]
    result = attnkit("score", str(text), "--model", str(tiny_model), "--backend", "numpy", "--json", *options)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["nll"] == pytest.approx(expected.nll, abs=1e-4)
    assert found["perplexity"] == pytest.approx(expected.perplexity, rel=1e-3)
    assert (found["tokens"], found["chunk"]) == (expected.tokens, chunk)
    assert all(path.startswith("numpy:") for path in found["paths"])


BOUNDS = {"float64": 1e-6, "float32": 1e-4, "bfloat16": 0.1}
HERE = [info.name for info in ak.backends() if info.available]
TAKEN = [(name, dtype) for name in HERE for dtype in BOUNDS if dtype in ak.get_backend(name).capabilities().dtypes]


@pytest.mark.parametrize(("backend", "dtype"), TAKEN)
def test_a_backend_and_an_element_type_score_alike(attnkit, tiny_model, text, backend, dtype):
    llama, tokenizer = load_model(tiny_model, backend="numpy", dtype="float64")
    expected = score(llama, tokenizer.encode(TEXT))
    options = ["--model", str(tiny_model), "--backend", backend, "--dtype", dtype, "--json"]
    result = attnkit("score", str(text), *options)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["nll"] == pytest.approx(expected.nll, abs=BOUNDS[dtype])
    assert all(path.startswith(f"{backend}:") for path in found["paths"])


@pytest.mark.parametrize(
    ("options", "chunk", "fields"),
    [
        (["--cache-dtype", "int8"], None, {"codec": "int8"}),
        (
            ["--cache", "paged", "--page-size", "4", "--cache-dtype", "int4"],
            3,
            {"layout": "paged", "page_size": 4, "codec": "int4"},
        ),
        (["--cache", "ring", "--window", "5"], 100, {"layout": "ring", "window": 5, "max_append": 100}),
    ],
    ids=["int8", "paged int4", "ring"],
)
def test_the_score_tells_what_a_cache_costs(attnkit, tiny_model, text, options, chunk, fields):
    llama, tokenizer = load_model(tiny_model, backend="numpy")
    ids = tokenizer.encode(TEXT)
    cache = llama.make_cache(max_length=None if "window" in fields else len(ids), **fields)
    expected = score(llama, ids, chunk=chunk, cache=cache)
    options = options if chunk is None else [*options, "--chunk", str(chunk)]
    result = attnkit("score", str(text), "--model", str(tiny_model), "--backend", "numpy", "--json", *options)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["nll"] == pytest.approx(expected.nll, abs=1e-4)
    assert abs(found["nll"] - score(llama, ids).nll) > 1e-6
    stored = fields.get("codec", "float32")
    assert found["cache"] == {"layout": cache.config.layout, "stored": stored, "bytes": cache.nbytes}


def test_people_get_one_line_and_the_speed_apart(attnkit, tiny_model, text):
    result = attnkit("score", str(text), "--model", str(tiny_model), "--backend", "numpy")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("nll ")
    assert result.stdout.count("\n") == 1
    assert result.stderr.startswith("numpy:")
    assert result.stderr.endswith("tokens/s\n")


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"", [], ["FILE", "empty"]),
        (b"a", [], ["FILE", "1 tokens"]),
        (b"a" * 500, [], ["FILE", "500 tokens", "128"]),
        (b"\xff\xfe", [], ["FILE", "not UTF-8", "byte 0"]),
        (b"hello", ["--chunk", "0"], ["--chunk must be >= 1, got 0"]),
        (b"hello", ["--dtype", "double"], ["--dtype must be one of", "got 'double'"]),
        (b"hello", ["--model", "absent"], ["--model", "absent"]),
        (b"hello", ["--cache", "ring"], ["--cache ring needs --window"]),
        (b"hello", ["--cache-dtype", "int9"], ["--cache-dtype must be one of", "got 'int9'"]),
        (None, [], ["FILE", "text.txt: No such file"]),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_2(attnkit, tiny_model, tmp_path, content, arguments, words):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    options = arguments if "--model" in arguments else [*arguments, "--model", str(tiny_model)]
    result = attnkit("score", str(path), *options)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)
