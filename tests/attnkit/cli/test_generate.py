from __future__ import annotations

import re

import pytest

import attnkit as ak
from attnkit.models import MissingExtraError, generate, load_model


def test_text_goes_to_stdout_and_speed_to_stderr(attnkit, tiny_model):
    result = attnkit("generate", "hello", "--model", str(tiny_model), "--max-tokens", "5", "--backend", "numpy")
    assert result.exit_code == 0, result.stderr
    llama, tokenizer = load_model(tiny_model, backend="numpy")
    expected = generate(llama, tokenizer, tokenizer.encode("hello"), max_tokens=5)
    assert result.stdout == "".join(tokenizer.stream(expected)) + "\n"
    assert re.match(r"numpy:\w+.*: 1 prompt tokens at .* tokens/s, .*cache [\d,]+ bytes\n", result.stderr)


def test_a_chat_and_a_draw_run(attnkit, tiny_model):
    options = ["--model", str(tiny_model), "--max-tokens", "3", "--chat", "--temperature", "1", "--seed", "4"]
    first, second = attnkit("generate", "hello", *options), attnkit("generate", "hello", *options)
    assert first.exit_code == 0, first.stderr
    assert first.stdout == second.stdout


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("backend", [info.name for info in ak.backends() if info.available])
def test_a_backend_and_an_element_type_run(attnkit, tiny_model, backend, dtype):
    options = ["--model", str(tiny_model), "--max-tokens", "5", "--backend", backend, "--dtype", dtype]
    result = attnkit("generate", "hello", *options)
    assert result.exit_code == 0, result.stderr
    llama, tokenizer = load_model(tiny_model, backend=backend, dtype=dtype)
    generation = generate(llama, tokenizer, tokenizer.encode("hello"), max_tokens=5)
    assert result.stdout == "".join(tokenizer.stream(generation)) + "\n"
    assert result.stderr.startswith(f"{backend}:")
    assert f"cache {generation.stats.cache_bytes:,} bytes" in result.stderr  # which is in proportion to the type


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hello", "--max-tokens", "0"], ["--max-tokens must be >= 1, got 0"]),
        (["hello", "--temperature", "-1"], ["--temperature must be finite and >= 0, got -1.0"]),
        (["hello", "--temperature", "nan"], ["--temperature", "got nan"]),
        (["hello", "--dtype", "int8"], ["--dtype must be one of float16, bfloat16, float32, float64, got 'int8'"]),
        (["hello", "--seed", "-3"], ["--seed must be >= 0, got -3"]),
        (["hello", "--max-tokens", "1000"], ["max_tokens=1000", "128"]),
        (["hello", "--model", "absent.gguf"], ["--model", "absent.gguf", "No such file"]),
        (["hello", "--backend", "nowhere"], ["backend", "nowhere"]),
        ([""], ["PROMPT", "empty"]),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_2(attnkit, tiny_model, arguments, words):
    given = arguments if "--model" in arguments else [*arguments, "--model", str(tiny_model)]
    result = attnkit("generate", *given)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)
    assert result.stdout == ""


def test_a_damaged_model_is_wrong_use_of_the_option(attnkit, tiny_model):
    tiny_model.write_bytes(tiny_model.read_bytes()[:1000])
    result = attnkit("generate", "hello", "--model", str(tiny_model))
    assert result.exit_code == 2
    assert "cut short" in result.stderr


def test_a_missing_extra_is_one_message(attnkit, tiny_model, monkeypatch):
    def missing(*_, **__):
        raise MissingExtraError("attnkit.models needs gguf: pip install 'attnkit[models]'")

    monkeypatch.setattr("attnkit.models.load_model", missing)
    result = attnkit("generate", "hello", "--model", str(tiny_model))
    assert result.exit_code == 1
    assert "pip install 'attnkit[models]'" in result.stderr
