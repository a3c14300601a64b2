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


CACHES = [
    ([], "contiguous float32"),
    (["--cache", "contiguous", "--cache-dtype", "int8"], "contiguous int8"),
    (["--cache", "paged"], "paged float32"),
    (["--cache", "paged", "--page-size", "4", "--cache-dtype", "int4/8"], "paged int4/8"),
    (["--cache", "ring", "--window", "6"], "ring float32"),
    (["--cache", "ring", "--window", "6", "--pinned", "2", "--cache-dtype", "fp8"], "ring fp8"),
    (["--cache-dtype", "float16"], "contiguous float16"),
]


def fields_of(options):
    """Give what options mean to ``make_cache``."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    fields = {"layout": given.get("--cache", "contiguous")}
    stored = given.get("--cache-dtype")
    if stored is not None:
        fields["dtype" if stored.startswith("float") else "codec"] = stored
    sizes = {"page_size": "--page-size", "window": "--window", "pinned": "--pinned"}
    return fields | {name: int(given[option]) for name, option in sizes.items() if option in given}


@pytest.mark.parametrize(("options", "words"), CACHES, ids=lambda value: value if isinstance(value, str) else None)
def test_any_cache_holds_the_text(attnkit, tiny_model, options, words):
    result = attnkit("generate", "hello world, 12", "--model", str(tiny_model), "--max-tokens", "9", *options)
    assert result.exit_code == 0, result.stderr
    llama, tokenizer = load_model(tiny_model, backend="numpy")
    fields = fields_of(options)
    ids = tokenizer.encode("hello world, 12")
    limit = {} if fields["layout"] == "ring" else {"max_length": len(ids) + 9}
    cache = llama.make_cache(**fields, **limit)
    expected = generate(llama, tokenizer, ids, max_tokens=9, cache=cache)
    assert result.stdout == "".join(tokenizer.stream(expected)) + "\n"
    assert result.stderr.endswith(f"{words} cache {cache.nbytes:,} bytes\n")


@pytest.mark.parametrize(("options", "words"), CACHES, ids=lambda value: value if isinstance(value, str) else None)
def test_several_prompts_are_printed_in_order(attnkit, tiny_model, options, words):
    prompts = ["hello world, 12 naïve", "user", "hello", "12"]
    result = attnkit("generate", *prompts, "--model", str(tiny_model), "--max-tokens", "4", *options)
    assert result.exit_code == 0, result.stderr
    llama, tokenizer = load_model(tiny_model, backend="numpy")
    texts = [
        generate(llama, tokenizer, tokenizer.encode(prompt), max_tokens=4, cache=llama.make_cache(**fields_of(options)))
        for prompt in prompts
    ]
    told = [f"{prompt}\n{tokenizer.decode(text)}\n\n" for prompt, text in zip(prompts, texts, strict=True)]
    assert result.stdout == "".join(told).replace("\r\n", "\n")  # as the runner gives it
    assert re.fullmatch(
        rf"numpy:.*: \d+ prompt tokens and \d+ new ones in \d+ steps at .* new tokens/s, {words} cache [\d,]+ bytes\n",
        result.stderr,
    )


def test_draws_of_several_prompts_are_those_of_each(attnkit, tiny_model):
    options = ["--model", str(tiny_model), "--max-tokens", "5", "--chat", "--temperature", "1", "--seed", "4"]
    together = attnkit("generate", "hello", "user", *options)
    alone = [attnkit("generate", prompt, *options).stdout for prompt in ("hello", "user")]
    assert together.exit_code == 0, together.stderr
    assert together.stdout == f"hello\n{alone[0]}\nuser\n{alone[1]}\n"


HERE = [info.name for info in ak.backends() if info.available]
TAKEN = [(name, dtype) for name in HERE for dtype in sorted(ak.get_backend(name).capabilities().dtypes)]


@pytest.mark.parametrize(("backend", "dtype"), TAKEN)
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
        (["hello", "--max-tokens", "1" + 15 * "0"], ["max_tokens=1000000000000000", "128"]),
        (["hello", "--model", "absent.gguf"], ["--model", "absent.gguf", "No such file"]),
        (["hello", "--backend", "nowhere"], ["backend", "nowhere"]),
        ([""], ["PROMPT", "empty"]),
        (["hello", ""], ["PROMPT", "empty"]),
        (["hello", "--cache", "rings"], ["--cache must be one of contiguous, ring, paged, got 'rings'"]),
        (["hello", "--cache", "ring"], ["--cache ring needs --window"]),
        (["hello", "--window", "5"], ["--window goes with --cache ring, got --cache contiguous"]),
        (["hello", "--cache", "paged", "--pinned", "5"], ["--pinned goes with --cache ring, got --cache paged"]),
        (["hello", "--page-size", "5"], ["--page-size goes with --cache paged, got --cache contiguous"]),
        (["hello", "--cache", "paged", "--page-size", "0"], ["--page-size must be >= 1, got 0"]),
        (["hello", "--cache", "ring", "--window", "0"], ["--window must be >= 1, got 0"]),
        (["hello", "--cache", "ring", "--window", "4", "--pinned", "-1"], ["--pinned must be >= 0, got -1"]),
        (["hello", "--cache", "ring", "--window", "1" + 12 * "0"], ["--window must be at most", "128", "got 1000000"]),
        (["hello", "--cache", "paged", "--page-size", "129"], ["--page-size must be at most", "128, got 129"]),
        (["hello", "--cache-dtype", "int3"], ["--cache-dtype must be one of", "int4/32", "got 'int3'"]),
        (["hello", "--cache-dtype", "int4/0"], ["--cache-dtype must be one of", "got 'int4/0'"]),
        (
            ["hello", "--cache-dtype", "int4/5"],
            ["--cache-dtype int4/5", "heads have 16 features", "block that divides"],
        ),
        (["hello", "12", "--max-tokens", "1000"], ["max_tokens=1000", "128"]),
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
