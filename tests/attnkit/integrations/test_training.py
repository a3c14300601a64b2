"""Training steps: gradients are those of eager attention, and what cannot be applied is refused."""

# ruff: noqa: E402  # imports follow the skip of those who lack the packages

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

import attnkit as ak
from attnkit.integrations.transformers.attention import attend

IDS = torch.tensor([[0, 0, 5, 9, 11, 23, 4], [3, 7, 8, 50, 61, 99, 4]])
KEPT = (IDS > 0).long()
# Queries of padding are zeros here and averages in eager attention: nothing is asked of them, nor of the token after.
LABELS = IDS.masked_fill(KEPT.roll(1, dims=1) * KEPT == 0, -100)

# As in test_models.py: relative to the largest gradient of a parameter, which passes two layers twice.
BOUND = 2e-5


def gradients(model, attention: str) -> dict:
    model.set_attn_implementation(attention)
    model.zero_grad()
    model(IDS, attention_mask=KEPT, labels=LABELS, use_cache=False).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "t5"])
def test_gradients_are_those_of_eager(zoo, name) -> None:
    model = zoo.fresh(name).train()
    expected, found = gradients(model, "eager"), gradients(model, "attnkit")
    assert found.keys() == expected.keys()
    for label, gradient in expected.items():
        assert (found[label] - gradient).abs().max() <= BOUND * gradient.abs().max(), label


def test_checkpointed_layers_give_the_same_gradients(zoo) -> None:
    model = zoo.fresh("mistral").train()
    expected = gradients(model, "attnkit")
    for reentrant in (False, True):
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        found = gradients(model, "attnkit")
        for label, gradient in expected.items():
            assert (found[label] - gradient).abs().max() <= BOUND * gradient.abs().max(), (reentrant, label)


def test_a_backend_without_gradients_is_refused(zoo) -> None:
    model = zoo.fresh("llama").train()
    with pytest.raises(ak.UnsupportedError) as error:
        gradients(model, "attnkit_numpy")
    assert "grad" in {reason.code for reasons in error.value.reasons.values() for reason in reasons}


def test_parameters_do_not_ask_for_gradients_where_none_are_recorded(zoo) -> None:
    """Sinks are parameters: they require gradients in any mode."""
    model = zoo.fresh("gpt_oss")
    model.set_attn_implementation("attnkit_numpy")
    with torch.no_grad():
        model(IDS, attention_mask=KEPT)
    with torch.inference_mode():
        model(IDS, attention_mask=KEPT)


def test_dropout_is_refused_in_training_and_idle_outside(zoo) -> None:
    model = zoo.fresh("llama", attention_dropout=0.1)
    model.set_attn_implementation("attnkit")
    with torch.no_grad():
        model(IDS)
    with pytest.raises(ak.UnsupportedError, match=r"dropout must be 0 in training, got 0.1"):
        model.train()(IDS)
    module = torch.nn.Module().eval()
    query = torch.randn(1, 1, 3, 8)
    assert torch.equal(*(attend(module, query, query, query, None, dropout=rate)[0] for rate in (0.0, 0.5)))
