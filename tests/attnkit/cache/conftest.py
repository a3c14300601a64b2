"""What a cache must be: plain lists of arrays, and everything that can be observed of one.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` new tokens, ``n`` stored tokens, ``D`` key head size,
``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnkit as ak
from attnkit.arrays import numpy_dtype

SIZES = {"num_layers": 2, "batch_size": 3, "num_kv_heads": 2, "head_dim": 4, "value_dim": 3}
HEADS = 4


class Lists:
    """Keys and values of each layer and sequence as plain arrays ``[K, n, D]`` and ``[K, n, E]``."""

    def __init__(self, config: ak.KVCacheConfig) -> None:
        self.dtype = numpy_dtype(config.dtype)
        shapes = [(config.num_kv_heads, 0, size) for size in (config.head_dim, config.value_dim)]
        self.layers = [
            [[np.zeros(shape, self.dtype) for shape in shapes] for _ in range(config.batch_size)]
            for _ in range(config.num_layers)
        ]

    def append(self, layer: int, key: Any, value: Any, lengths: Any = None) -> None:
        counts = [key.shape[2]] * len(key) if lengths is None else lengths
        for sequence, (held, count) in enumerate(zip(self.layers[layer], counts, strict=True)):
            for part, array in enumerate((key, value)):
                held[part] = np.concatenate([held[part], array[sequence, :, :count].astype(self.dtype)], axis=1)

    def truncate(self, lengths: Any) -> None:
        for layer in self.layers:
            for sequence, length in enumerate(lengths):
                layer[sequence] = [array[:, :length] for array in layer[sequence]]

    def reorder(self, indices: Any) -> None:
        self.layers = [[list(layer[index]) for index in indices] for layer in self.layers]

    def stored(self, layer: int) -> list[int]:
        return [key.shape[1] for key, _ in self.layers[layer]]

    def read(self, layer: int) -> list[Any]:
        """Give ``[B, K, n, D]`` and ``[B, K, n, E]`` with zeros past the end."""
        longest = max(self.stored(layer))
        pads = [[((0, 0), (0, longest - key.shape[1]), (0, 0))] * 2 for key, _ in self.layers[layer]]
        return [
            np.stack([np.pad(held[part], pad[part]) for held, pad in zip(self.layers[layer], pads, strict=True)])
            for part in (0, 1)
        ]

    def attend(self, layer: int, query: Any, lengths: Any = None) -> Any:
        """Give causal attention ``[B, H, T, E]`` in float64, one row at a time; rows of padding are 0."""
        output = np.zeros((*query.shape[:3], self.layers[layer][0][1].shape[2]))
        rows = [query.shape[2]] * len(query) if lengths is None else lengths
        for b, h, i in np.ndindex(*query.shape[:3]):
            key, value = (array[h // (HEADS // array.shape[0])].astype(np.float64) for array in self.layers[layer][b])
            seen = len(key) - rows[b] + i + 1
            if i < rows[b] and seen > 0:
                scores = key[:seen] @ query[b, h, i].astype(np.float64) / np.sqrt(key.shape[1])
                weights = np.exp(scores - scores.max())
                output[b, h, i] = weights @ value[:seen] / weights.sum()
        return output


class Kit:
    """Under importlib mode tests cannot import this file."""

    Lists = Lists
    heads = HEADS

    @staticmethod
    def config(**changes: Any) -> ak.KVCacheConfig:
        return ak.KVCacheConfig(**{**SIZES, "dtype": "float64", **changes})

    @staticmethod
    def observe(cache: ak.KVCache, rows: int = 2) -> list[Any]:
        """Give all that can be observed of a cache, as bytes and lists."""
        config = cache.config
        query = np.linspace(-1, 1, config.batch_size * HEADS * rows * config.head_dim)
        query = query.reshape(config.batch_size, HEADS, rows, config.head_dim)
        seen = [cache.next_position, cache.seen, cache.stored, cache.capacity, cache.nbytes]
        for layer in cache:
            seen += [layer.next_position, layer.stored, layer.capacity, *layer.read()]
            seen += [*layer.attend_with_lse(query), layer.attend(query, mask=ak.Mask.causal())]
        return [value.tobytes() if isinstance(value, np.ndarray) else value for value in seen]

    @staticmethod
    def poison(cache: ak.KVCache) -> None:
        """Write NaN into every slot that holds no token, and what is farthest off into codes."""
        for layer, pages in zip(cache, cache.pages, strict=True):
            dead = np.ones(pages.slots, bool)
            slots = layer.table().slots
            dead[slots[slots >= 0]] = False
            for plane in pages.planes:
                plane[:, dead] = 127 if plane.dtype.kind in "iu" else np.nan

    @staticmethod
    def stored_bytes(cache: ak.KVCache) -> list[bytes]:
        """Give all that lies in storage."""
        return [plane.tobytes() for pages in cache.pages for plane in pages.planes]


@pytest.fixture
def shelf() -> type[Kit]:
    return Kit


@pytest.fixture(params=["plain", "numpy"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("plain") if request.param == "plain" else "numpy"


@pytest.fixture(params=["plain-growing", "plain-fixed", "numpy-growing"])
def cache(request: pytest.FixtureRequest) -> ak.KVCache:
    """Give an empty cache of two layers and three sequences, growing or of nine tokens."""
    backend, _, layout = request.param.partition("-")
    if backend == "plain":
        request.getfixturevalue("plain")
    return ak.make_cache(Kit.config(max_length=9 if layout == "fixed" else None), backend=backend)


@pytest.fixture
def plain_cache(plain: str) -> ak.KVCache:
    """Give an empty growing cache, for what does not depend on the backend."""
    return ak.make_cache(Kit.config(), backend=plain)


@pytest.fixture
def tokens(draw: Any) -> Any:
    """Draw key ``[B, K, T, D]`` and value ``[B, K, T, E]``."""

    def tokens(count: int, dtype: Any = np.float64) -> tuple[Any, Any]:
        head = (SIZES["batch_size"], SIZES["num_kv_heads"], count)
        return draw(*head, SIZES["head_dim"], dtype=dtype), draw(*head, SIZES["value_dim"], dtype=dtype)

    return tokens


@pytest.fixture
def queries(draw: Any) -> Any:
    """Draw query ``[B, H, T, D]``."""

    def queries(count: int, dtype: Any = np.float64) -> Any:
        return draw(SIZES["batch_size"], HEADS, count, SIZES["head_dim"], dtype=dtype)

    return queries
