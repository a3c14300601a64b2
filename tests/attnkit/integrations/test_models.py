"""Models of transformers give the same with attnkit as with their own attention, in every way of running them."""

# imports follow the skip of those who lack the packages

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

from attnkit.integrations.transformers.attention import attend
from attnkit.integrations.transformers.masks import make_mask

# Relative to the largest logit. A rounding of float32 is 2**-24; two layers carry some hundred of them to the logits.
BOUND = 1e-5
FAULT = 1e-2


def distance(found, expected) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def eager(zoo):
    """Give the logits of the model's own attention."""
    found = {}

    def run(name, mode):
        if (name, mode) not in found:
            found[name, mode] = zoo.run(zoo.model(name, "eager"), name, mode)
        return found[name, mode]

    return run


@pytest.mark.parametrize("attention", ["attnkit", "attnkit_numpy"])
def test_logits_are_those_of_eager(zoo, eager, case, attention) -> None:
    name, mode = case
    found = zoo.run(zoo.model(name, attention), name, mode)
    assert distance(found, eager(name, mode)) < BOUND


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("gemma2", "softcap"),
        ("gemma2", "scaling"),
        ("gpt_oss", "s_aux"),
        ("t5", "position_bias"),
        ("t5", "scaling"),
        ("whisper", "scaling"),
        ("mistral", "attention_mask"),
        ("llama4", "attention_mask"),
    ],
)
def test_an_option_that_is_left_out_shows(zoo, eager, implementation, name, left_out) -> None:
    def lacking(module, query, key, value, attention_mask, **options):
        if left_out == "attention_mask":
            attention_mask = None
        options.pop(left_out, None)
        return attend(module, query, key, value, attention_mask, **options)

    found = zoo.run(zoo.model(name, implementation(lacking, make_mask)), name, "prompt")
    assert distance(found, eager(name, "prompt")) > FAULT


@pytest.mark.parametrize("name", ["bert", "whisper"])
def test_causality_that_is_assumed_shows(zoo, eager, implementation, name) -> None:
    def assuming(module, query, key, value, attention_mask, **options):
        return attend(module, query, key, value, attention_mask, **{**options, "is_causal": True})

    found = zoo.run(zoo.model(name, implementation(assuming, make_mask)), name, "prompt")
    assert distance(found, eager(name, "prompt")) > FAULT


def test_padding_that_is_forgotten_shows(zoo, eager, implementation) -> None:
    """Without a mask function transformers gives no mask at all."""
    for name in ("llama", "bert", "gpt2"):
        found = zoo.run(zoo.model(name, implementation(attend, None)), name, "padded")
        assert distance(found, eager(name, "padded")) > FAULT


@pytest.mark.parametrize("attention", ["attnkit", "attnkit_numpy"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_run(zoo, attention, dtype) -> None:
    """Logits are as near to float32's as those of eager attention are, give or take as much again."""
    exact = zoo.run(zoo.model("llama", "eager"), "llama", "padded")
    short = distance(zoo.run(zoo.model("llama", "eager", dtype), "llama", "padded"), exact)
    found = distance(zoo.run(zoo.model("llama", attention, dtype), "llama", "padded"), exact)
    assert 0 < found < 2 * short
