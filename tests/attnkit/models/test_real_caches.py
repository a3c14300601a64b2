"""What layouts and codecs cost the real model; its text is from The Devil's Dictionary by Ambrose Bierce."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from attnkit.models import ContinuousBatch, PromptLookup, load_model, score, speculate

pytestmark = pytest.mark.model
TEXT = Path(__file__).parents[2] / "data" / "devils_dictionary.txt"
PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of one hundred degrees, and it freezes at",
    "def fibonacci(n):\n    if n",
    "2 + 2 =",
    "Once upon a time there was a little girl who lived with her mother in a house at the edge of",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Hold BLAS to one thread: the threads of several test workers would wait for each other at every product."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="module")
def loaded():
    return load_model(backend="numpy")


@pytest.fixture(scope="module")
def ids(loaded):
    return loaded[1].encode(TEXT.read_bytes().decode())


@pytest.fixture(scope="module")
def native(loaded, ids):
    return score(loaded[0], ids, chunk=100).nll


# Measured with eight chunkings on two backends, which decide otherwise about codes near a tie, as far as:
# int8 -0.0004 ... 0.0027, fp8 0.0000 ... 0.0060, int4/32 0.050 ... 0.073, int4 0.119 ... 0.176. The bytes of a token
# are 23,040 features of keys and values in codes, and their scales.
@pytest.mark.parametrize(
    ("fields", "bound", "bytes_per_token"),
    [
        ({"codec": "int8", "layout": "paged", "page_size": 16}, 0.01, 12_960),
        ({"codec": "fp8"}, 0.02, 12_240),
        ({"codec": "int4/32"}, 0.12, 8_640),
        ({"codec": "int4"}, 0.25, 7_200),
    ],
    ids=["int8", "fp8", "int4/32", "int4"],
)
def test_a_codec_costs_little_of_the_score(loaded, ids, native, fields, bound, bytes_per_token):
    cache = loaded[0].make_cache(max_length=496, **fields)
    assert cache.nbytes == 496 * bytes_per_token
    assert cache.config.bytes_per_token == bytes_per_token < 46_080 / 3
    found = score(loaded[0], ids, chunk=100, cache=cache).nll
    assert 0 < abs(found - native) < bound


def test_texts_of_a_batch_are_what_they_are_alone(loaded, texts):
    """Five prompts in three rows of a pool of limited size: texts wait, join and leave while others go on."""
    model, tokenizer = loaded
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    lengths = [10, 6, 12, 8, 7]
    batch = ContinuousBatch(
        model, model.make_cache(batch_size=0, layout="paged", page_size=8, num_pages=9), max_rows=3, max_piece=8
    )
    recorders = [texts.recorder() for _ in prompts]
    together, waited = [], 0
    for prompt, length, recorder in zip(prompts, lengths, recorders, strict=True):
        together.append(batch.submit(prompt, max_tokens=length, choose=recorder))
    found = {request: [] for request in together}
    while batch:
        for event in batch.step():
            found[event.request].append(event.token)
        waited += bool(batch.waiting)
        batch.cache.check_invariants()
    assert waited > 3
    for prompt, length, request, recorder in zip(prompts, lengths, together, recorders, strict=True):
        tokens, logits = texts.alone(model, prompt, length)
        error = texts.rounding(model, logits)
        clear = texts.decided(logits, error)
        assert clear >= length - 1
        assert found[request][:clear] == tokens[:clear]
        np.testing.assert_allclose(np.array(recorder.logits)[:clear], logits[:clear], rtol=0, atol=error)


def test_drafts_give_the_greedy_text(loaded, texts):
    model, tokenizer = loaded
    line = "The oil was good, the shutter was in order, and the boy was not to blame.\n"
    prompt = tokenizer.encode(2 * line + "The oil was good,")
    tokens, logits = texts.alone(model, prompt, 20)
    clear = texts.decided(logits, texts.rounding(model, logits))
    assert clear >= 10
    generation = speculate(
        model,
        tokenizer,
        prompt,
        max_tokens=20,
        stop_ids=(),
        draft=PromptLookup(),
        max_draft=4,
        cache=model.make_cache(layout="paged", page_size=16),
    )
    assert list(generation)[:clear] == tokens[:clear]
    assert generation.stats.accepted >= 5
    assert generation.stats.passes == 19 - generation.stats.accepted
