"""The programs of docs/examples that run a model, here on a tiny one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from attnkit.models import load_model

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
PROMPT = [5, 17, 200, 3, 3, 90, 41, 8, 77, 120, 6, 31, 4, 50, 12, 60, 61, 62]


@pytest.fixture
def example():
    """Load a program without running it."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_continuations_share_the_pages_of_their_prompt(example, tiny):
    program = example("prefix_reuse")
    shared = program.continue_together(tiny, PROMPT, 8, 5)
    page = 16 * tiny.make_cache().config.bytes_per_token
    assert (shared.after_prompt, shared.after_forks) == (2 * page, 2 * page)
    assert shared.after_texts == (1 + 8) * page  # the full page is shared, each text has its own copy of the other
    assert shared.apart == 8 * 2 * page
    assert shared.untouched
    assert shared.found == 16
    assert len({tuple(text) for text in shared.texts}) == 8
    for seed, text in enumerate(shared.texts):
        assert program.alone(tiny, PROMPT, text, seed) == text


@pytest.mark.parametrize("fields", [{"layout": "paged", "page_size": 4}, {"layout": "ring", "window": 8}], ids=str)
def test_drafts_are_compared_with_plain_decoding(example, gguf_path, fields):
    program = example("speculative")
    model, tokenizer = load_model(gguf_path(), backend="numpy", dtype="float64")
    found = program.compare(model, tokenizer, PROMPT * 2, 20, **fields)
    assert found["same"]
    assert found["stats"].new_tokens == len(found["text"]) <= 20
    assert found["seconds"] > 0
    refused = program.refused_by(found["cache"], len(PROMPT))
    assert ("ring has given up" in refused) == (fields["layout"] == "ring")


@pytest.mark.parametrize("name", ["prefix_reuse", "speculative"])
def test_a_program_prints_what_it_found(example, tiny, gguf_path, monkeypatch, capsys, name):
    program, loaded = example(name), load_model(gguf_path(), backend="numpy")
    monkeypatch.setattr(program, "load_model", lambda **_: loaded)
    monkeypatch.setattr(loaded[1], "encode", lambda text: [3 + ord(letter) % 90 for letter in text[:90]])
    program.main()
    printed = capsys.readouterr().out
    assert {"prefix_reuse": "each of them: True", "speculative": "same text: True"}[name] in printed
