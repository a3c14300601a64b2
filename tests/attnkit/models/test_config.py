from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from attnkit.models import GGUFFile, LlamaConfig, ModelError, read_gguf_config, read_hf_config


def test_both_sources_give_the_same_configuration(gguf_path, lab):
    config = lab.config(rms_norm_eps=float(np.float32(1e-5)))
    assert read_gguf_config(GGUFFile(gguf_path())) == config
    assert LlamaConfig.from_hf(lab.hf_config(config)) == config


def test_newer_and_older_spellings_are_read(lab):
    config = lab.config()
    newer = lab.hf_config(config, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})
    assert LlamaConfig.from_hf(newer) == config
    older = lab.hf_config(config, head_dim=None, eos_token_id=2)
    assert LlamaConfig.from_hf(older) == config
    del older["num_key_value_heads"]
    assert LlamaConfig.from_hf(older).num_kv_heads == config.num_heads


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads=3"),
        ({"head_dim": 15}, "head_dim=15 is odd"),
        ({"num_hidden_layers": 0}, "num_layers"),
        ({"num_hidden_layers": 2**31}, "num_layers"),
        ({"vocab_size": "many"}, "vocab_size.*'many'"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
    ],
)
def test_other_models_are_refused(lab, change, words):
    with pytest.raises(ModelError, match=words):
        LlamaConfig.from_hf(lab.hf_config(lab.config(), **change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.type is 'linear'"),
        ({"llama.rope.dimension_count": 8}, "dimension_count is 8"),
        ({"llama.expert_count": 4}, "expert_count"),
        ({"llama.attention.value_length": 8}, "value_length"),
        ({"llama.attention.head_count": [4, 4]}, "num_heads"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.rope.freq_base": float("nan")}, "rope_theta"),
    ],
)
def test_other_gguf_models_are_refused(gguf_path, change, words):
    with pytest.raises(ModelError, match=rf"tiny-F32\.gguf.*{words}"):
        read_gguf_config(GGUFFile(gguf_path(**change)))


def test_another_architecture_is_refused_before_anything_else():
    with pytest.raises(ModelError, match=r"general\.architecture is 'mamba', only 'llama'"):
        LlamaConfig.from_gguf({"general.architecture": "mamba"})


def test_a_broken_config_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: not JSON"):
        read_hf_config(tmp_path)


def test_a_configuration_is_frozen_and_takes_no_unknown_field(lab):
    config = lab.config()
    with pytest.raises(ValidationError):
        config.num_heads = 8
    with pytest.raises(ValidationError, match="sliding_window"):
        lab.config(sliding_window=4)
