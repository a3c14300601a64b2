from __future__ import annotations

import math

import numpy as np
import pytest

import attnkit as ak
from attnkit.models import generate, load_model, score

PROMPT = [5, 17, 200, 3]


@pytest.fixture
def loaded(gguf_path):
    return load_model(gguf_path(), backend="numpy")


def test_greedy_tokens_are_those_without_a_cache(loaded):
    model, tokenizer = loaded
    found = list(generate(model, tokenizer, PROMPT, max_tokens=8, stop_ids=()))
    ids = list(PROMPT)
    for _ in range(8):
        ids.append(int(np.argmax(model.forward(ids)[-1])))
    assert found == ids[4:]


def test_stop_tokens_end_the_text_and_are_not_given(loaded):
    model, tokenizer = loaded
    free = list(generate(model, tokenizer, PROMPT, max_tokens=8, stop_ids=()))
    stopped = list(generate(model, tokenizer, PROMPT, max_tokens=8, stop_ids=[free[3]]))
    assert stopped == free[: free.index(free[3])]
    assert tokenizer.stop_ids == (2,)


def test_stats_count_every_token_and_second(loaded):
    model, tokenizer = loaded
    generation = generate(model, tokenizer, PROMPT, max_tokens=5, stop_ids=())
    assert generation.stats.prefill_seconds == 0
    assert math.isnan(generation.stats.decode_rate)
    assert len(list(generation)) == 5
    stats = generation.stats
    assert (stats.prompt_tokens, stats.decode_tokens) == (4, 4)
    assert stats.prefill_seconds > 0
    assert stats.decode_rate > 0
    assert stats.cache_bytes == generation.cache.nbytes > 0
    assert generation.cache.next_position.tolist() == [8]


def test_draws_depend_on_the_seed_alone(loaded):
    model, tokenizer = loaded

    def drawn(seed: int) -> list[int]:
        return list(generate(model, tokenizer, PROMPT, max_tokens=12, temperature=2.0, seed=seed, stop_ids=()))

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(5)}) > 1


def test_a_low_temperature_is_greedy(loaded):
    model, tokenizer = loaded
    cold = generate(model, tokenizer, PROMPT, max_tokens=8, temperature=1e-6, stop_ids=())
    assert list(cold) == list(generate(model, tokenizer, PROMPT, max_tokens=8, stop_ids=()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": 0}, "max_tokens must be >= 1, got 0"),
        ({"temperature": -1.0}, "temperature must be finite and >= 0, got -1.0"),
        ({"temperature": math.nan}, "temperature"),
        ({"prompt_ids": []}, "prompt_ids"),
        ({"max_tokens": 125}, "context of 128"),
    ],
)
def test_arguments_out_of_range_are_refused(loaded, change, words):
    model, tokenizer = loaded
    arguments = {"prompt_ids": PROMPT, "max_tokens": 4} | change
    with pytest.raises(ak.ShapeError, match=words):
        generate(model, tokenizer, **arguments)


@pytest.mark.parametrize("chunk", [None, 1, 3, 11, 100])
def test_a_score_is_the_mean_surprise(loaded, lab, chunk):
    model, _ = loaded
    ids = [5, 17, 200, 3, 3, 90, 41, 8, 77, 120, 6]
    logits = lab.plain_logits(lab.config(), lab.arrays(lab.config()), ids)[:-1]
    log_sums = np.log(np.exp(logits - logits.max()).sum(axis=-1)) + logits.max()
    expected = (log_sums - logits[np.arange(10), ids[1:]]).mean()
    found = score(model, ids, chunk=chunk)
    assert found.tokens == 10
    assert found.nll == pytest.approx(expected, abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(expected), rel=1e-3)


@pytest.mark.parametrize(
    ("ids", "chunk", "words"),
    [([1, 2], 0, "chunk must be >= 1, got 0"), ([1], None, "at least 2 tokens"), ([1] * 129, None, "context .* 128")],
)
def test_scores_that_cannot_be_are_refused(loaded, ids, chunk, words):
    with pytest.raises(ak.ShapeError, match=words):
        score(loaded[0], ids, chunk=chunk)
