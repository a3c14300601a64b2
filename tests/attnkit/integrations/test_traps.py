"""What is easily got wrong in transformers' attention interface, one test for each."""

# ruff: noqa: E402  # imports follow the skip of those who lack the packages

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'attnkit[torch]'")
transformers = pytest.importorskip("transformers", reason="pip install 'attnkit[transformers]'")

from transformers import AttentionInterface

import attnkit as ak
from attnkit.integrations.transformers import counted, register
from attnkit.integrations.transformers.attention import attend
from attnkit.integrations.transformers.masks import MaskTensor, make_mask

BOUND, FAULT = 1e-5, 1e-2
IDS = torch.tensor([[5, 9, 11, 23, 4, 77, 31], [3, 7, 8, 50, 61, 99, 4]])


class Causal(torch.nn.Module):
    is_causal = True


def draw(rows: int, keys: int):
    torch.manual_seed(0)
    return tuple(torch.randn(1, 2, length, 8, dtype=torch.float64) for length in (rows, keys, keys))


def call(query, key, value, mask=None, **options):
    return attend(Causal(), query, key, value, mask, scaling=1.0, backend="torch", **options)[0]


def same(found, expected) -> bool:
    return bool((found - expected).abs().max() < 1e-12)


def test_windows_and_padding_come_through_a_mask_of_our_own(zoo) -> None:
    """A name without a mask function gets no mask at all, and nobody says so."""
    seen = []

    def looking(module, query, key, value, mask, **options):
        seen.append(mask)
        return attend(module, query, key, value, mask, **options)

    for masks, kind in ((make_mask, MaskTensor), (None, type(None))):
        AttentionInterface.register("test-looking", looking)
        if masks is not None:
            transformers.AttentionMaskInterface.register("test-looking", masks)
        try:
            seen.clear()
            zoo.run(zoo.model("mistral", "test-looking"), "mistral", "padded")
        finally:
            AttentionInterface._global_mapping.pop("test-looking")
            transformers.AttentionMaskInterface._global_mapping.pop("test-looking", None)
        assert [type(mask) for mask in seen] == [kind] * 2


def test_no_mask_counts_from_the_first_key() -> None:
    """A static cache hands over all of its slots; those behind the prompt are empty."""
    query, key, value = draw(5, 16)
    found = call(query, key, value)
    assert same(found, call(query, key[:, :, :5], value[:, :, :5]))
    aligned_to_the_end = ak.attention(query, key, value, scale=1.0, mask=ak.Mask.causal()).transpose(1, 2)
    assert (found - aligned_to_the_end).abs().max() > FAULT


def test_one_query_without_a_mask_sees_everything() -> None:
    query, key, value = draw(1, 16)
    expected = (query @ key.mT).softmax(-1) @ value
    assert same(call(query, key, value), expected.transpose(1, 2))


def test_a_window_is_not_applied_twice(zoo) -> None:
    """Keys may be cropped to the window already, and nothing says where they stand."""
    query, key, value = draw(1, 16)
    assert same(call(query, key, value, sliding_window=3), call(query, key, value))
    model, cache = zoo.model("mistral", "attnkit"), None
    eager, ids = [], IDS.repeat(1, 2)
    for attention in ("eager", "attnkit"):
        model.set_attn_implementation(attention)
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            steps = [model(part, cache=cache).logits for part in ids.split(1, dim=1)]
        eager.append(torch.cat(steps, dim=1))
        assert cache.layers[0].keys.shape[2] < 4
    assert (eager[0] - eager[1]).abs().max() < BOUND * eager[0].abs().max()


def test_words_inside_a_name_mislead_transformers(zoo) -> None:
    """So they are refused here, where it can be explained; transformers speaks of missing kernels."""
    with pytest.raises(ValueError, match="'flash'"):
        register("attnkit_flash")
    AttentionInterface.register("attnkit_flash", attend)
    try:
        with pytest.raises((ImportError, ValueError)):
            zoo.fresh("bert").set_attn_implementation("attnkit_flash")
    finally:
        AttentionInterface._global_mapping.pop("attnkit_flash")


@pytest.mark.parametrize("name", ["llama", "bert", "whisper", "t5"])
def test_weights_that_are_asked_for_are_refused(zoo, name) -> None:
    """transformers would give an empty tuple."""
    model = zoo.model(name, "attnkit")
    inputs = {"input_ids": IDS}
    if name == "whisper":
        inputs = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": IDS}
    if name == "t5":
        inputs["decoder_input_ids"] = IDS
    with pytest.raises(ak.UnsupportedError, match=r"output_attentions must be False.*eager"), torch.no_grad():
        model(**inputs, output_attentions=True)
    with torch.no_grad():
        assert not model(**inputs, output_hidden_states=True).get("attentions")


def test_models_of_one_configuration_share_the_implementation(zoo) -> None:
    config = zoo.config("llama")
    one, other = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    one.set_attn_implementation("attnkit")
    with torch.no_grad(), counted(other) as calls:
        other(IDS)
    assert len(calls) == 2


def test_packed_sequences_are_those_alone(zoo) -> None:
    model = zoo.model("llama", "attnkit")
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        found = model(IDS.reshape(1, 14), position_ids=positions, use_cache=False).logits.reshape(2, 7, -1)
        expected = model(IDS, use_cache=False).logits
    assert (found - expected).abs().max() < BOUND * expected.abs().max()


def test_packing_that_only_a_kernel_would_see_is_refused() -> None:
    query, key, value = draw(7, 7)
    ends = torch.tensor([0, 3, 7], dtype=torch.int32)
    with pytest.raises(ak.UnsupportedError, match=r"cu_seq_lens_q.*2 packed sequences"):
        call(query, key, value, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    shown = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    call(query, key, value, shown, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    call(query, key, value, cu_seq_lens_q=ends[[0, 2]])


@pytest.mark.parametrize("name", ["indices", "block_indices", "sinks"])
def test_what_would_change_the_result_is_refused(name) -> None:
    query, key, value = draw(7, 7)
    call(query, key, value, **{name: None})
    with pytest.raises(ak.UnsupportedError, match=f"{name} must be None"):
        call(query, key, value, **{name: torch.zeros(1, 7, 2, dtype=torch.long)})


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.ones(1, 7, dtype=torch.bool), ak.ShapeError),
        (torch.ones(1, 1, 7, 7, dtype=torch.int64), ak.DTypeError),
        (np.ones((1, 1, 7, 7), bool), ak.DTypeError),
        (torch.ones(1, 1, 7, 6, dtype=torch.bool), ak.ShapeError),
    ],
)
def test_masks_of_another_kind_are_refused(mask, error) -> None:
    with pytest.raises(error, match="mask"):
        call(*draw(7, 7), mask)


@pytest.mark.parametrize("attention", ["attnkit", "attnkit_numpy"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "bert"])
def test_queries_of_padding_give_no_nan(zoo, name, attention) -> None:
    model = zoo.model(name, attention)
    kept = torch.ones_like(IDS)
    kept[0, :4] = 0
    kept[1] = 0
    with torch.no_grad():
        output = model(IDS, attention_mask=kept)[0]
    assert output.isfinite().all()
