from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attnkit.models import (
    GGUFFile,
    Llama,
    ModelError,
    Weights,
    expected_shapes,
    gguf_weights,
    hf_weights,
    read_gguf_config,
    read_hf_config,
)

CUTS = np.linspace(0, 0.999, 16)


@pytest.mark.parametrize("tied", [True, False])
def test_gguf_weights_are_the_arrays_that_were_written(gguf_path, lab, tied):
    file = GGUFFile(gguf_path(tied=tied))
    config = read_gguf_config(file)
    assert config.tie_embeddings is tied
    weights = gguf_weights(file, config)
    expected = lab.arrays(lab.config(tie_embeddings=tied))
    assert weights.shapes == expected_shapes(config)
    for name, array in expected.items():
        np.testing.assert_array_equal(weights.read(name), array, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_hf_weights_are_the_arrays_that_were_written(tmp_path, lab, dtype, shards, tied):
    config = lab.config(tie_embeddings=tied)
    arrays = lab.arrays(config)
    lab.write_hf(tmp_path, config, arrays, dtype, shards)
    assert read_hf_config(tmp_path) == config
    weights = hf_weights(tmp_path, config)
    assert weights.shapes == expected_shapes(config)
    for name, array in arrays.items():
        found = weights.read(name)
        assert found.dtype == (np.float64 if dtype is np.float64 else np.float32)
        np.testing.assert_array_equal(found, array.astype(dtype), err_msg=name)


def test_a_tied_matrix_stored_twice_is_read_once(tmp_path, lab):
    config = lab.config()
    arrays = lab.arrays(config)
    lab.write_hf(tmp_path, config, arrays | {"head": arrays["embed"]})
    assert "head" not in hf_weights(tmp_path, config).shapes


@pytest.mark.parametrize("part", CUTS)
def test_safetensors_cut_short_anywhere_are_refused(tmp_path, lab, part):
    config = lab.config()
    path = lab.write_hf(tmp_path, config, lab.arrays(config)) / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        hf_weights(tmp_path, config)


@pytest.mark.parametrize("source", ["gguf", "hf", "arrays"])
def test_weights_that_do_not_fit_are_all_named(tmp_path, lab, source):
    config = lab.config()
    arrays = lab.arrays(config)
    del arrays["layers.0.k"]
    arrays["layers.1.up"] = np.zeros((64, 64), np.float32)
    arrays["layers.2.q"] = np.zeros((64, 64), np.float32)
    names = {"gguf": ("attn_k", "ffn_up", "blk.2.attn_q"), "hf": ("k_proj", "up_proj", "layers.2.self_attn.q_proj")}
    open_them = {
        "gguf": lambda: gguf_weights(GGUFFile(lab.write_gguf(tmp_path / "tiny.gguf", config, arrays)), config),
        "hf": lambda: hf_weights(lab.write_hf(tmp_path, config, arrays), config),
        "arrays": lambda: Llama(config, Weights.from_arrays(arrays)),
    }[source]
    with pytest.raises(ModelError) as caught:
        open_them()
    text = str(caught.value)
    missing, wrong, extra = names.get(source, ("layers.0.k", "layers.1.up", "layers.2.q"))
    assert text.index("missing") < text.index(missing) < text.index("unexpected") < text.index(extra)
    assert text.index("wrong shape") < text.index(wrong)
    assert "[64, 64], expected [96, 64]" in text


def test_integers_for_weights_are_refused(tmp_path, lab):
    config = lab.config()
    lab.write_hf(tmp_path, config, lab.arrays(config))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = np.zeros(64, np.int32)
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has type I32"):
        hf_weights(tmp_path, config)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("not json", "not JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "weight_map"),
        ('{"weight_map": {"a": 3}}', "weight_map"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "not a file name"),
        ('{"weight_map": {"a": "absent.safetensors"}}', "absent.safetensors"),
        ('{"weight_map": {"a": "model-00001.safetensors"}}', "holds no a"),
    ],
)
def test_a_broken_index_is_refused(tmp_path, lab, index, words):
    config = lab.config()
    lab.write_hf(tmp_path, config, lab.arrays(config), shards=2)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=words):
        hf_weights(tmp_path, config)


def test_a_directory_without_weights_is_refused(tmp_path, lab):
    (tmp_path / "config.json").write_text(json.dumps(lab.hf_config(lab.config())))
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        hf_weights(tmp_path, lab.config())
