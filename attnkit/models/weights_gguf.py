"""A Llama-family model in a GGUF file: its configuration, and its weights under the names of ``expected_shapes``."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnkit.models.config import LlamaConfig
from attnkit.models.errors import ModelError
from attnkit.models.gguf_file import GGUFFile
from attnkit.models.weights import Weights, check_shapes, expected_shapes

_TOP = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def read_gguf_config(file: GGUFFile) -> LlamaConfig:
    """Give the configuration of the model in a GGUF file, or raise ``ModelError`` naming the file."""
    try:
        return LlamaConfig.from_gguf(file.metadata, tie_embeddings=_TOP["head"] not in file.tensors)
    except ModelError as error:
        raise ModelError(f"{file.path}: {error}") from None


def gguf_weights(file: GGUFFile, config: LlamaConfig) -> Weights:
    """Give the weights in a GGUF file, as float32.

    Raises
    ------
    ModelError
        If a tensor is missing, unexpected or of the wrong shape.
    """
    expected = expected_shapes(config)
    found = {name: tensor.shape for name, tensor in file.tensors.items()}
    check_shapes(str(file.path), found, {_gguf_name(name): shape for name, shape in expected.items()})
    heads = {"q": config.num_heads, "k": config.num_kv_heads}

    def read(name: str) -> np.ndarray[Any, Any]:
        array = file.read(_gguf_name(name))
        rotated = heads.get(name.rpartition(".")[2])
        return array if rotated is None else _half_split(array, rotated)

    return Weights(str(file.path), expected, read)


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{_LAYER[part]}.weight"


def _half_split(array: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Reorder the rows of a query or key projection ``[heads * D, n]`` for rotation of halves.

    GGUF converters store row pairs ``(2i, 2i + 1)`` for the interleaved rotation; ours turns ``(i, i + D/2)``.
    """
    rows, width = array.shape
    pairs = array.reshape(num_heads, rows // num_heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)
