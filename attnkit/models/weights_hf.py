"""A Llama-family model in a Hugging Face directory: ``config.json`` and ``model.safetensors``, whole or in shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from attnkit.models.config import LlamaConfig
from attnkit.models.errors import ModelError
from attnkit.models.weights import Shape, Weights, check_shapes, expected_shapes

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("BF16", "F16", "F32", "F64")
_TOP = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise ``ModelError`` naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_hf_config(folder: Path) -> LlamaConfig:
    """Give the configuration of the model in a directory, or raise ``ModelError`` naming the file."""
    path = folder / "config.json"
    try:
        return LlamaConfig.from_hf(read_json(path))
    except ModelError as error:
        raise error if str(error).startswith(str(path)) else ModelError(f"{path}: {error}") from None


def hf_weights(folder: Path, config: LlamaConfig) -> Weights:
    """Give the weights in a directory, as float32 (float64 where they are stored so).

    Raises
    ------
    ModelError
        If a file is missing, cut short or not safetensors, or a tensor is missing, unexpected, of the wrong shape or
        not of floats.
    """
    expected = expected_shapes(config)
    homes = _homes(folder)
    found = {name: shape for file in sorted(set(homes.values())) for name, shape in _shapes(file, homes).items()}
    if config.tie_embeddings:
        found.pop(_TOP["head"], None)  # some writers store the tied matrix twice
    check_shapes(str(folder), found, {hf_name(name): shape for name, shape in expected.items()})
    return Weights(str(folder), expected, lambda name: _read(homes[hf_name(name)], hf_name(name)))


def hf_name(name: str) -> str:
    """Give the name that an array of ``expected_shapes`` has in a Hugging Face directory."""
    if name in _TOP:
        return _TOP[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.weight"


def _homes(folder: Path) -> dict[str, Path]:
    """Tell in which file each tensor lies."""
    if (folder / _FILE).exists() or not (folder / _INDEX).exists():
        return dict.fromkeys(_names(folder / _FILE), folder / _FILE)
    shards = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise ModelError(f"{folder / _INDEX}: weight_map must map tensor names to file names")
    outside = sorted(shard for shard in set(shards.values()) if Path(shard).name != shard)
    if outside:
        raise ModelError(f"{folder / _INDEX}: {outside[0]!r} is not a file name in this directory")
    return {name: folder / shard for name, shard in shards.items()}


def _names(file: Path) -> list[str]:
    with _opened(file) as tensors:
        return list(tensors.keys())


def _shapes(file: Path, homes: dict[str, Path]) -> dict[str, Shape]:
    with _opened(file) as tensors:
        inside = set(tensors.keys())
        wanted = [name for name, home in homes.items() if home == file and not name.endswith(".rotary_emb.inv_freq")]
        absent = [name for name in wanted if name not in inside]
        if absent:
            raise ModelError(f"{file}: holds no {absent[0]}, where {_INDEX} says it is")
        slices = {name: tensors.get_slice(name) for name in wanted}
        for name, piece in slices.items():
            if piece.get_dtype() not in _FLOATS:
                raise ModelError(f"{file}: {name} has type {piece.get_dtype()}; readable are {', '.join(_FLOATS)}")
        return {name: tuple(piece.get_shape()) for name, piece in slices.items()}


def _read(file: Path, name: str) -> np.ndarray[Any, Any]:
    with _opened(file) as tensors:
        array: np.ndarray[Any, Any] = tensors.get_tensor(name)
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: {error}") from None
