"""Wrong configurations: pydantic reports them, with the field and the value that came."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pydantic import ValidationError

import attnkit as ak

HEADS = {"num_heads": 4, "head_dim": 8}
SIZES = {"num_kv_heads": 1, "head_dim": 2}
CUT_MASK = {"kind": "dense", "shape": [3, 5], "bits": "/w=="}


def mask(*terms):
    return {**HEADS, "mask": {"terms": list(terms)}}


ATTENTION = [
    ("unknown key", {**HEADS, "dropout": 0.1}, "dropout", "Extra inputs are not permitted", "0.1"),
    ("heads do not divide", {**HEADS, "num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads", "4 and 3"),
    ("heads missing", {"head_dim": 8}, "num_heads", "Field required"),
    ("heads negative", {**HEADS, "num_heads": -4}, "num_heads", "greater than 0", "-4"),
    ("heads fractional", {**HEADS, "num_heads": 4.5}, "num_heads", "valid integer", "4.5"),
    ("heads text", {**HEADS, "num_heads": "four"}, "num_heads", "valid integer", "'four'"),
    ("head size 0", {**HEADS, "head_dim": 0}, "head_dim", "greater than 0", "input_value=0"),
    ("value size negative", {**HEADS, "value_dim": -1}, "value_dim", "greater than 0", "-1"),
    ("scale infinite", {**HEADS, "scale": np.inf}, "scale", "finite number", "inf"),
    ("softcap 0", {**HEADS, "softcap": 0}, "softcap", "greater than 0", "input_value=0"),
    ("rope odd", {**HEADS, "rope": {"dim": 3}}, "rope", "rope.dim must be even, got 3"),
    ("rope of an odd head", {**HEADS, "head_dim": 7, "rope": {}}, "rope.dim must be even and <= head_dim = 7, got 7"),
    ("rope too large", {**HEADS, "rope": {"dim": 10}}, "rope.dim must be even and <= head_dim = 8, got 10"),
    ("rope theta", {**HEADS, "rope": {"theta": 0}}, "rope.theta", "greater than 0", "input_value=0"),
    ("rope style", {**HEADS, "rope": {"style": "neox"}}, "rope.style", "'half' or 'interleaved'", "'neox'"),
    ("mask is an array", {**HEADS, "mask": np.ones((3, 3), bool)}, "mask", "instance of Mask", "array([["),
    ("mask is text", {**HEADS, "mask": "causal"}, "mask", "instance of Mask", "'causal'"),
    ("mask without terms", {**HEADS, "mask": {"terms": []}}, "mask", "mask data must be", "'terms': []"),
    ("mask terms are text", {**HEADS, "mask": {"terms": "causal"}}, "mask", "mask data must be", "'causal'"),
    ("mask kind", mask({"kind": "banded"}), "mask", "kind must be one of causal, window", "'banded'"),
    ("mask size", mask({"kind": "window", "left": 0}), "mask", "left must be >= 1", "got 0"),
    ("mask bits cut", mask(CUT_MASK), "mask", "needs 15 bits, got 1 bytes"),
    ("mask shape", mask({**CUT_MASK, "shape": 3}), "mask", "a dense term needs a shape", "'int'"),
    ("mask float ids", mask({"kind": "documents", "ids_q": [0.5], "ids_k": [1]}), "mask", "ids_q must hold integers"),
    ("mask contradicts", mask({"kind": "causal"}, {"kind": "prefix", "n": 2}), "mask", "already contains causal"),
    ("two faults", {**HEADS, "head_dim": 0, "scale": "x"}, "head_dim", "scale", "valid number", "'x'"),
]

CACHE = [
    ("layout", {**SIZES, "layout": "spiral"}, "layout", "'contiguous'", "'spiral'"),
    ("dtype", {**SIZES, "dtype": "int8"}, "dtype", "'float32'", "'int8'"),
    ("dtype class", {**SIZES, "dtype": np.float32}, "dtype", "'float32'", "numpy.float32"),
    ("no layers", {**SIZES, "num_layers": 0}, "num_layers", "greater than 0", "input_value=0"),
    ("sequences -1", {**SIZES, "batch_size": -1}, "batch_size", "greater than or equal to 0", "input_value=-1"),
    ("no room", {**SIZES, "max_length": 0}, "max_length", "greater than 0", "input_value=0"),
    ("heads missing", {"head_dim": 2}, "num_kv_heads", "Field required"),
    ("value size", {**SIZES, "value_dim": -1}, "value_dim", "greater than 0", "-1"),
    ("unknown key", {**SIZES, "heads": 3}, "heads", "Extra inputs are not permitted"),
    ("another layout's", {**SIZES, "window": 3}, "window must not be given for layout 'contiguous'"),
]

HF = [
    ("no type", {}, ValueError, "model_type must be one of", "got None"),
    ("unknown type", {"model_type": "perceptron"}, ValueError, "model_type must be one of", "'perceptron'"),
]


@pytest.mark.parametrize(("name", "fields", "parts"), [(*row[:2], row[2:]) for row in ATTENTION])
def test_attention_config(world, name, fields, parts) -> None:
    world.refuses(name, lambda w: ak.AttentionConfig(**fields), ValidationError, *parts)


@pytest.mark.parametrize(("name", "fields", "parts"), [(*row[:2], row[2:]) for row in CACHE])
def test_cache_config(world, name, fields, parts) -> None:
    world.refuses(name, lambda w: ak.KVCacheConfig(**fields), ValidationError, *parts)


@pytest.mark.parametrize("kind", [ak.AttentionConfig, ak.KVCacheConfig, ak.RopeConfig])
@pytest.mark.parametrize(
    ("text", "part"),
    [('{"head_dim": 4,', "Invalid JSON"), ("", "Invalid JSON"), ("[1]", "an object"), ('{"n": 1}', "Extra inputs")],
)
def test_json(world, kind, text, part) -> None:
    world.refuses("", lambda w: kind.model_validate_json(text), ValidationError, kind.__name__, part)


def test_json_cut_anywhere(world) -> None:
    config = ak.AttentionConfig(**HEADS, mask=ak.Mask.dense([[True, False]]), rope=ak.RopeConfig())
    text = config.model_dump_json()
    assert ak.AttentionConfig.model_validate_json(text) == config
    for stop in range(len(text)):
        world.refuses("", lambda w, stop=stop: type(config).model_validate_json(text[:stop]), ValidationError, "JSON")


def test_a_config_is_frozen(world) -> None:
    config = ak.AttentionConfig(**HEADS)
    world.refuses("", lambda w: setattr(config, "num_heads", 3), ValidationError, "num_heads", "frozen", "3")


@pytest.mark.parametrize("row", HF, ids=lambda row: row[0])
def test_hugging_face_config(world, row) -> None:
    world.refuses(row[0], lambda w: ak.AttentionConfig.from_hf(row[1]), *row[2:])


def test_hugging_face_file(world, tmp_path) -> None:
    path, read = tmp_path / "config.json", ak.AttentionConfig.from_hf
    world.refuses("", lambda w: read(path), FileNotFoundError, str(path))
    world.refuses("", lambda w: read(tmp_path), FileNotFoundError, str(path))
    path.write_text(json.dumps([1, 2]))
    world.refuses("", lambda w: read(path), ValueError, str(path), "must be a JSON object, got list")
