"""Speculative decoding: the text is the greedy one, whatever is drafted."""

from __future__ import annotations

import numpy as np
import pytest

import attnkit as ak
from attnkit.models import PromptLookup, load_model, speculate

PROMPT = [5, 17, 200, 3, 3, 90, 41, 8]


class Oracle:
    """A draft that knows the text and is wrong in every ``wrong``-th of its tokens."""

    def __init__(self, prompt, text, wrong=None, length=4):
        self.whole, self.wrong, self.length = [*prompt, *text], wrong, length

    def __call__(self, tokens):
        start = len(tokens)
        ahead = list(self.whole[start : start + self.length])
        return [token + 1 if self.wrong and (start + n) % self.wrong == 0 else token for n, token in enumerate(ahead)]


@pytest.fixture(scope="module")
def tokenizer():
    class Tokenizer:
        stop_ids = ()

    return Tokenizer()


@pytest.mark.parametrize("codec", ["native", "int8", "int4", "int4/8", "fp8"])
@pytest.mark.parametrize("layout", ["contiguous", "fixed", "ring", "pinned", "paged", "pages of one", "pool"])
def test_the_text_is_the_greedy_one(tiny, texts, tokenizer, layout, codec):
    fields = texts.layouts[layout] | {"codec": codec}
    text, _ = texts.alone(tiny, PROMPT, 30, **fields)
    for wrong in (None, 1, 3, 5):
        cache = tiny.make_cache(**fields)
        found = speculate(
            tiny, tokenizer, PROMPT, max_tokens=30, cache=cache, draft=Oracle(PROMPT, text, wrong), max_draft=4
        )
        assert list(found) == text
        assert cache.next_position.tolist() == [len(PROMPT) + 29]
        cache.check_invariants()
        stats = found.stats
        assert stats.new_tokens == 30 == 1 + stats.passes + stats.accepted
        assert stats.accepted == stats.drafted if wrong is None else stats.accepted < stats.drafted


def test_a_perfect_draft_saves_passes_and_a_wrong_one_costs_none(tiny, texts, tokenizer):
    text, _ = texts.alone(tiny, PROMPT, 26)
    perfect = speculate(tiny, tokenizer, PROMPT, max_tokens=26, draft=Oracle(PROMPT, text), max_draft=4)
    assert list(perfect) == text
    assert (perfect.stats.passes, perfect.stats.accepted) == (5, 20)
    wrong = speculate(tiny, tokenizer, PROMPT, max_tokens=26, draft=Oracle(PROMPT, text, 1), max_draft=4)
    assert list(wrong) == text
    assert (wrong.stats.passes, wrong.stats.accepted) == (25, 0)


@pytest.mark.parametrize("seed", range(4))
def test_random_drafts_of_random_lengths(tiny, texts, tokenizer, seed):
    rng = np.random.default_rng(seed)
    layout = list(texts.layouts.values())[seed + 1]
    text, _ = texts.alone(tiny, PROMPT, 40, **layout)
    whole = [*PROMPT, *text]

    def draft(tokens):
        ahead = whole[len(tokens) : len(tokens) + int(rng.integers(0, 9))]
        return [token if rng.random() < 0.7 else int(rng.integers(3, 200)) for token in ahead]

    cache = tiny.make_cache(**layout)
    assert list(speculate(tiny, tokenizer, PROMPT, max_tokens=40, cache=cache, draft=draft, max_draft=4)) == text


def test_stop_tokens_end_the_text_and_are_not_given(gguf_path):
    model, tokenizer = load_model(gguf_path(), backend="numpy", dtype="float64")
    free = list(speculate(model, tokenizer, PROMPT, max_tokens=12, stop_ids=()))
    for number, token in enumerate(free):
        found = speculate(
            model, tokenizer, PROMPT, max_tokens=12, stop_ids=[token], draft=Oracle(PROMPT, free), max_draft=4
        )
        expected = free[: free.index(token)]
        assert list(found) == expected, number
        assert found.cache.next_position.tolist() == [len(PROMPT) + len(expected)]


def test_prompt_lookup_gives_what_followed_last_time():
    text = [1, 2, 3, 9, 9, 2, 3, 4, 5, 6, 1, 2, 3]
    assert PromptLookup()(text) == [9, 9, 2, 3, 4, 5, 6, 1]
    assert PromptLookup(longest=2)(text) == [4, 5, 6, 1, 2, 3]
    assert PromptLookup(longest=2, length=2)(text) == [4, 5]
    assert PromptLookup()([1, 2, 3]) == []
    assert PromptLookup()([7]) == []
    assert PromptLookup()([1, 2, 7, 8, 2]) == []
    assert PromptLookup(shortest=1)([1, 2, 7, 8, 2]) == [7, 8, 2]
    assert PromptLookup(shortest=1)([7, 7]) == [7]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shortest": 0}, r"shortest must lie in 1\.\.longest = 1\.\.3, got 0"),
        ({"shortest": 4}, "got 4"),
        ({"length": 0}, "length must be >= 1, got 0"),
    ],
)
def test_lookups_that_cannot_be(fields, words):
    with pytest.raises(ak.ShapeError, match=words):
        PromptLookup(**fields)


def test_a_repeating_text_is_drafted_by_looking_it_up(tiny, texts, tokenizer):
    text, _ = texts.alone(tiny, PROMPT, 40)
    prompt, draft = [*PROMPT, *text, *PROMPT], PromptLookup(shortest=1)
    found = speculate(tiny, tokenizer, prompt, max_tokens=20, draft=draft, stop_ids=())
    assert list(found) == texts.alone(tiny, prompt, 20)[0]
    assert found.stats.drafted > 0


def test_a_ring_goes_back_over_the_last_append_and_no_further(tiny):
    """A draft is cut back whole; tokens of the append before it have lost their window."""
    cache = tiny.make_cache(layout="ring", window=5, max_append=6)
    tiny.forward(PROMPT[:6], cache)
    tiny.forward([*PROMPT[6:], 9, 9, 9], cache)
    cache.drop(5)
    tiny.forward(PROMPT[6:], cache)
    tiny.forward([9, 9, 9], cache)
    with pytest.raises(ak.ShapeError, match=r"given up what comes before, so it can go back to position \[?8"):
        cache.drop(4)
    assert cache.next_position.tolist() == [11]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"max_draft": 0}, ak.ShapeError, "max_draft must be >= 1, got 0"),
        ({"max_tokens": 0}, ak.ShapeError, "max_tokens must be >= 1, got 0"),
        ({"max_tokens": 121}, ak.ShapeError, "context of 128"),
        (
            {"layout": "ring", "window": 8, "max_append": 6, "max_draft": 6},
            ak.CacheCapacityError,
            "max_draft at most 5",
        ),
        ({"max_length": 12}, ak.CacheCapacityError, "holds 12 of one sequence"),
        ({"batch_size": 2}, ak.ShapeError, "one sequence, got 2"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tiny, tokenizer, arguments, error, words):
    options = {name: arguments.pop(name) for name in ("max_draft", "max_tokens") if name in arguments}
    cache = tiny.make_cache(**arguments)
    with pytest.raises(error, match=words):
        speculate(tiny, tokenizer, PROMPT, cache=cache, **{"max_tokens": 8} | options)
    assert not cache.next_position.any()
