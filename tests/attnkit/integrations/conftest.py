"""Tiny random models of transformers, the ways in which they run, and the same attention in the words of the oracle.

Axes: ``B`` batch, ``H`` query heads, ``T`` query length, ``S`` key length, ``V`` vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from attnkit import Mask, reference

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: nothing here needs the network

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
KV = {"num_key_value_heads": 2}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
FORMS = {
    "llama": ("Llama", "ForCausalLM", {**SIZES, **KV}),
    "mistral": ("Mistral", "ForCausalLM", {**SIZES, **KV, "sliding_window": 4}),
    "gemma2": (
        "Gemma2",
        "ForCausalLM",
        {
            **SIZES,
            **KV,
            **TWO_KINDS,
            "head_dim": 16,
            "attn_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gemma3": ("Gemma3Text", "ForCausalLM", {**SIZES, **KV, **TWO_KINDS, "head_dim": 16, "query_pre_attn_scalar": 8}),
    "qwen3": ("Qwen3", "ForCausalLM", {**SIZES, **KV, "head_dim": 32}),
    "gpt_oss": (
        "GptOss",
        "ForCausalLM",
        {
            **SIZES,
            **KV,
            **TOKENS,
            **TWO_KINDS,
            "head_dim": 16,
            "num_local_experts": 2,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        "ForCausalLM",
        {
            **SIZES,
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "first_k_dense_replace": 2,
        },
    ),
    "llama4": (
        "Llama4Text",
        "ForCausalLM",
        {
            **SIZES,
            **KV,
            **TOKENS,
            "head_dim": 16,
            "attention_chunk_size": 4,
            "num_local_experts": 2,
            "intermediate_size_mlp": 96,
            "num_experts_per_tok": 1,
            "no_rope_layers": [1, 0],
            "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "gpt2": (
        "GPT2",
        "LMHeadModel",
        {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, **TOKENS},
    ),
    "bert": ("Bert", "Model", SIZES),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        {
            "vocab_size": 128,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 96,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.0,
        },
    ),
    "whisper": (
        "Whisper",
        "ForConditionalGeneration",
        {
            "vocab_size": 128,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 64,
            "decoder_start_token_id": 1,
            **TOKENS,
        },
    ),
}
ENCODERS, ENCODER_DECODERS = {"bert"}, {"t5", "whisper"}
MODES = ("prompt", "padded", "decode", "chunks", "static")


def modes_of(name: str) -> tuple[str, ...]:
    return MODES[:2] if name in ENCODERS else MODES[:3] if name in ENCODER_DECODERS else MODES


CASES = [(name, mode) for name in FORMS for mode in modes_of(name)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test that asks for a ``case`` run for every model and every way of running it."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids="-".join)


class Zoo:
    """Under importlib mode tests cannot import this file."""

    def __init__(self) -> None:
        self._built: dict[tuple[str, str], Any] = {}

    def config(self, name: str, **changes: Any) -> Any:
        import transformers

        prefix, _, fields = FORMS[name]
        return getattr(transformers, f"{prefix}Config")(**{**fields, **changes})

    def fresh(self, name: str, dtype: str = "float32", **changes: Any) -> Any:
        """Build a model whose weights are large enough for masks, caps and sinks to matter."""
        import torch
        import transformers

        prefix, suffix, _ = FORMS[name]
        torch.manual_seed(0)
        kind = getattr(transformers, {"Gemma3Text": "Gemma3", "Llama4Text": "Llama4"}.get(prefix, prefix) + suffix)
        model = kind(self.config(name, **changes)).to(getattr(torch, dtype)).eval()
        if name == "gpt_oss":
            model.set_experts_implementation("eager")  # the usual one knows no float64
        with torch.no_grad():
            for label, weight in model.named_parameters():
                if label.endswith("sinks"):
                    weight.normal_()
                elif weight.ndim > 1:
                    weight.mul_(1.5 if name == "t5" else 6)  # T5 starts with large ones
        return model

    def model(self, name: str, attention: str, dtype: str = "float32") -> Any:
        """Give a model that is shared by all tests, with an implementation of attention."""
        if (name, dtype) not in self._built:
            self._built[name, dtype] = self.fresh(name, dtype)
        model = self._built[name, dtype]
        model.set_attn_implementation(attention)
        return model

    def run(self, model: Any, name: str, mode: str) -> Any:
        """Give logits ``[2, 7, V]`` as an array, 0 where the input is padding."""
        import torch

        with torch.no_grad():
            return _RUNS[mode](model, *_inputs(model, name, mode)).double().numpy()


def _inputs(model: Any, name: str, mode: str) -> tuple[dict[str, Any], str, Any]:
    """Give the inputs that stay, the name of those that come in parts, and these."""
    import torch

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 120, (2, 7), generator=generator)
    kept = torch.ones(2, 7, dtype=torch.long)
    if mode == "padded":
        kept[0, :3] = 0
    if name == "whisper":
        sound = torch.randn(2, 8, 20, generator=generator).to(model.dtype)
        inputs = {"input_features": sound}
        return (inputs | {"decoder_attention_mask": kept} if mode == "padded" else inputs), "decoder_input_ids", ids
    if name == "t5":
        return {"input_ids": ids, "attention_mask": kept}, "decoder_input_ids", ids.flip(1)
    return ({"attention_mask": kept} if mode == "padded" else {}), "input_ids", ids


def _logits(output: Any) -> Any:
    return output.logits if "logits" in output else output.last_hidden_state


def _at_once(model: Any, kept: dict[str, Any], name: str, ids: Any) -> Any:
    logits = _logits(model(**kept, **{name: ids}))
    shown = kept.get("decoder_attention_mask", kept.get("attention_mask"))
    return logits if shown is None or model.config.model_type == "t5" else logits * shown[..., None]


def _in_parts(*sizes: int, cache: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    def run(model: Any, kept: dict[str, Any], name: str, ids: Any) -> Any:
        import torch

        own = (cache or dynamic_cache)(model)
        parts = [
            _logits(model(**kept, **{name: part}, cache=own, use_cache=True)) for part in ids.split(list(sizes), dim=1)
        ]
        return torch.cat(parts, dim=1)

    return run


def dynamic_cache(model: Any) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    if model.config.is_encoder_decoder:
        return EncoderDecoderCache(DynamicCache(), DynamicCache())
    return DynamicCache(config=model.config)


def static_cache(model: Any) -> Any:
    from transformers import StaticCache

    return StaticCache(config=model.config, max_cache_len=16)


_RUNS = {
    "prompt": _at_once,
    "padded": _at_once,
    "decode": _in_parts(5, 1, 1),
    "chunks": _in_parts(3, 4),
    "static": _in_parts(5, 1, 1, cache=static_cache),
}


class Definition:
    """Attention as transformers means it, in the words of the oracle: all that is visible as one dense mask."""

    @staticmethod
    def truth(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> reference.Truth:
        return reference.attention(
            *(tensor.detach().numpy() for tensor in (query, key, value)),
            mask=Mask.dense(Definition.visible(module, query.shape[2], key.shape[2], mask)),
            scale=options["scaling"],
            softcap=options.get("softcap"),
            sinks=None if options.get("s_aux") is None else options["s_aux"].detach().numpy(),
            bias=None if options.get("position_bias") is None else options["position_bias"].detach().numpy(),
        )

    @staticmethod
    def visible(module: Any, rows: int, keys: int, mask: Any) -> Any:
        if mask is not None:
            return mask.logical_and(mask).numpy()
        several = rows > 1 and module.is_causal
        return np.tri(rows, keys, dtype=bool) if several else np.ones((rows, keys), bool)


@pytest.fixture(scope="session")
def zoo() -> Zoo:
    return Zoo()


@pytest.fixture(scope="session")
def definition() -> type[Definition]:
    return Definition


@pytest.fixture(scope="session", autouse=True)
def names() -> None:
    """Register the implementations that the tests use."""
    from attnkit.integrations.transformers import register

    register("attnkit", backend="torch")
    register("attnkit_numpy", backend="numpy")


@pytest.fixture
def implementation() -> Iterator[Callable[..., str]]:
    """Register a function for one test; gives its name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    added: list[str] = []

    def add(function: Callable[..., Any], mask: Callable[..., Any] | None) -> str:
        name = f"test-{len(added)}"
        AttentionInterface.register(name, function)
        if mask is not None:
            AttentionMaskInterface.register(name, mask)
        added.append(name)
        return name

    yield add
    for name in added:
        AttentionInterface._global_mapping.pop(name)
        AttentionMaskInterface._global_mapping.pop(name, None)
