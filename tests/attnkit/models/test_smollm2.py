"""The real model; its text is from The Devil's Dictionary by Ambrose Bierce (public domain)."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import attnkit as ak
from attnkit import trace
from attnkit.models import fetch_default_model, generate, load_model, score

pytestmark = pytest.mark.model
TEXT = Path(__file__).parents[2] / "data" / "devils_dictionary.txt"
NLL = 3.7221  # of the same weights and text in Hugging Face transformers and in CTranslate2, float32


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Hold BLAS to one thread: the threads of several test workers would wait for each other at every product."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="module")
def loaded():
    return load_model(backend="numpy")


def test_the_capital_of_france_is_paris(loaded):
    model, tokenizer = loaded
    generation = generate(model, tokenizer, tokenizer.encode("The capital of France is"), max_tokens=4)
    assert "".join(tokenizer.stream(generation)).startswith(" Paris.")


def test_chat_answers_and_ends_its_turn(loaded):
    model, tokenizer = loaded
    ids = tokenizer.chat("What is gravity?")
    written = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids == tokenizer.encode(written)
    answer = "".join(tokenizer.stream(generate(model, tokenizer, ids, max_tokens=8)))
    assert answer.startswith("Gravity is a fundamental")


@pytest.fixture(scope="module")
def ids(loaded):
    return loaded[1].encode(TEXT.read_bytes().decode())


@pytest.fixture(scope="module")
def whole(loaded, ids):
    return score(loaded[0], ids)


def test_the_score_of_a_text_is_known(ids, whole):
    assert len(ids) == 492
    assert whole.tokens == 491
    assert whole.nll == pytest.approx(NLL, abs=1e-3)


@pytest.mark.parametrize("chunk", [None, 1, 7, 64])
@pytest.mark.parametrize("path", ["dense", "tiled"])
def test_neither_path_nor_chunks_change_the_score(loaded, ids, whole, path, chunk):
    model = copy(loaded[0])  # shares the weights
    model.choice = f"numpy:{path}"
    with trace() as calls:
        nll = score(model, ids, chunk=chunk).nll
    assert {(call.backend, call.path) for call in calls} == {("numpy", path)}
    assert nll == pytest.approx(whole.nll, abs=1e-4)


OTHERS = [info.name for info in ak.backends() if info.available and info.name != "numpy"]


@pytest.fixture(scope="module", params=[(name, dtype) for name in OTHERS for dtype in ("float32", "bfloat16")], ids=str)
def other(request):
    """The same model with another backend, whose threads, too, are held to one."""
    backend, dtype = request.param
    model = load_model(backend=backend, dtype=dtype)[0]
    with threadpool_limits(1):
        yield model


def test_other_backends_give_the_score(other, ids, whole):
    chunk = None if other.dtype == "float32" else 100  # with and without a cache, once each: bfloat16 is slow on CPUs
    with trace() as calls:
        nll = score(other, ids, chunk=chunk).nll
    assert {call.backend for call in calls} == {other.backend.name}
    assert nll == pytest.approx(whole.nll, abs={"float32": 1e-4, "bfloat16": 0.01}[other.dtype])


def test_other_backends_write_the_text(loaded, other):
    """Where the two best logits lie further apart than twice the error of a logit."""
    model, tokenizer = loaded
    prompt = tokenizer.encode("The capital of France is")
    expected = list(generate(model, tokenizer, prompt, max_tokens=12, stop_ids=()))
    logits = model.forward(prompt + expected[:-1], all_logits=True)[len(prompt) - 1 :]
    second, first = np.sort(logits, axis=-1)[:, -2:].T
    error = 1e-3 if other.dtype == "float32" else 2**-8 * abs(logits).max()
    unclear = np.append(first - second <= 2 * error, True)
    found = list(generate(other, tokenizer, prompt, max_tokens=12, stop_ids=()))
    clear = int(unclear.argmax())
    assert clear >= 3
    assert found[:clear] == expected[:clear]


def test_the_file_is_found_again(loaded):
    assert fetch_default_model().stat().st_size == 98_362_432
