"""Models that never ask for attention are noticed."""

# ruff: noqa: E402  # imports follow the skip of those who lack the packages

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
transformers = pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

from attnkit.integrations.transformers import BypassedError, counted

LAYERS = ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def test_calls_are_named_in_order(zoo) -> None:
    model = zoo.model("llama", "attnkit")
    with counted(model) as calls:
        zoo.run(model, "llama", "prompt")
        assert calls == LAYERS
        zoo.run(model, "llama", "chunks")
    assert calls == LAYERS * 3
    zoo.run(model, "llama", "prompt")
    assert calls == LAYERS * 3


def test_another_implementation_is_noticed(zoo) -> None:
    model = zoo.model("llama", "eager")
    with pytest.raises(BypassedError, match="attn_implementation='eager'"), counted(model):
        zoo.run(model, "llama", "prompt")


def test_a_model_that_never_asks_is_noticed() -> None:
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2)
    model = transformers.BloomForCausalLM._from_config(config, attn_implementation="attnkit").eval()
    with pytest.raises(BypassedError, match=r"BloomForCausalLM.*AttentionInterface"), counted(model), torch.no_grad():
        model(torch.tensor([[3, 4, 5]]))


def test_a_model_that_did_not_run_is_no_fault(zoo) -> None:
    with counted(zoo.model("llama", "eager")) as calls:
        pass
    assert calls == []


def test_calls_of_other_models_do_not_count(zoo) -> None:
    one, other = zoo.model("llama", "attnkit"), zoo.model("qwen3", "attnkit")
    with counted(other) as calls, counted(one) as own:
        zoo.run(one, "llama", "prompt")
    assert (calls, own) == ([], LAYERS)


def test_an_error_of_the_model_is_not_covered_up(zoo) -> None:
    model = zoo.model("llama", "eager")
    with pytest.raises(IndexError), counted(model):
        model(torch.tensor([[1000]]))
    assert not model._forward_pre_hooks
