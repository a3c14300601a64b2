"""What attnkit is measured against: torch's fused attention, and the textbook in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnkit.models import LlamaConfig, Weights

Array = np.ndarray[Any, Any]


def torch_attention(query: Array, key: Array, value: Array, *, threads: int) -> Callable[[], object]:
    """Give a call of ``scaled_dot_product_attention``, causal, on ``threads`` threads; ImportError without torch."""
    import torch

    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(array) for array in (query, key, value)]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)


def textbook_attention(query: Array, key: Array, value: Array) -> Array:
    """Compute causal attention by the book: all scores, masked, softmax, product; all in float32."""
    length = query.shape[-2]
    scores = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(query.shape[-1]))
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, np.float32(-1e9))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    output: Array = weights / weights.sum(axis=-1, keepdims=True) @ value
    return output


class ConcatenatingDecoder:
    """A Llama decoder as one writes it first: NumPy, ``x @ W.T``, and a cache that is concatenated at every token."""

    def __init__(self, config: LlamaConfig, weights: Weights) -> None:
        self.config = config
        self.weights = {name: np.array(weights.read(name), np.float32) for name in weights.shapes}
        self.keys: list[Array | None] = [None] * config.num_layers
        self.values: list[Array | None] = [None] * config.num_layers
        self.position = 0

    def forward(self, ids: Sequence[int]) -> Array:
        """Append tokens ``[T]`` and give the logits ``[1, V]`` after the last."""
        x = self.weights["embed"][list(ids)]
        for layer in range(self.config.num_layers):
            part = {name: self.weights[f"layers.{layer}.{name}"] for name in _PARTS}
            x = x + self._attend(self._norm(x, part["attn_norm"]), layer, part)
            hidden = self._norm(x, part["mlp_norm"])
            gate = hidden @ part["gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (hidden @ part["up"].T)) @ part["down"].T
        self.position += len(ids)
        logits: Array = self._norm(x[-1:], self.weights["norm"]) @ self.weights["embed"].T
        return logits

    def _attend(self, x: Array, layer: int, part: dict[str, Array]) -> Array:
        config, length = self.config, len(x)
        query, key, value = ((x @ part[name].T).reshape(length, -1, config.head_dim) for name in "qkv")
        query, key = self._rotate(query), self._rotate(key)
        if self.keys[layer] is not None:
            key, value = np.concatenate([self.keys[layer], key]), np.concatenate([self.values[layer], value])
        self.keys[layer], self.values[layer] = key, value
        grouped = query.reshape(length, config.num_kv_heads, -1, config.head_dim).transpose(1, 2, 0, 3)
        scores = grouped @ key.transpose(1, 2, 0)[:, None] * np.float32(config.head_dim**-0.5)
        if length > 1:
            shown = np.arange(len(key))[None] <= np.arange(length)[:, None] + self.position
            scores = np.where(shown, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ value.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(length, -1)
        output: Array = mixed @ part["o"].T
        return output

    def _rotate(self, heads: Array) -> Array:
        size = self.config.head_dim
        frequencies = 1 / self.config.rope_theta ** (np.arange(0, size, 2, dtype=np.float32) / size)
        angles = np.arange(self.position, self.position + len(heads), dtype=np.float32)[:, None] * frequencies
        cos, sin = np.cos(angles)[:, None].astype(np.float32), np.sin(angles)[:, None].astype(np.float32)
        first, second = heads[..., : size // 2], heads[..., size // 2 :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _norm(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config.rms_norm_eps)) * weight


_PARTS = ("attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down")
