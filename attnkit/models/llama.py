"""A Llama-family decoder whose attention and KV cache are attnkit's, so that every backend runs it.

Axes: ``B`` sequences, ``T`` tokens of each, ``N = B * T``, ``n`` hidden, ``H`` query heads, ``K`` key/value heads,
``D`` head size, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.api import attention, get_backend, make_cache
from attnkit.arrays import DTYPES, namespace
from attnkit.backend import Backend
from attnkit.cache.base import KVCache
from attnkit.config import DType, KVCacheConfig, RopeConfig
from attnkit.errors import DTypeError, ShapeError
from attnkit.masks import Mask
from attnkit.models.config import LlamaConfig
from attnkit.models.layers import as_type, project, rms_norm, swiglu, widened
from attnkit.models.weights import Weights, check_shapes, expected_shapes
from attnkit.positional import apply_rope, rope_tables
from attnkit.selection import current_choice

Array = Any
TokenIds = Sequence[int] | Sequence[Sequence[int]] | np.ndarray[Any, Any]
_CAUSAL = Mask.causal()


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of one layer, in as few matrices ``[in, out]`` as may be, since a decode step is many small calls.

    What is multiplied by the same input is one matrix, the gains of the norm before it are in it, and the gate is
    halved, which is how ``swiglu`` takes it and costs no bit.
    """

    qkv: Array
    out: Array
    gate_up: Array
    down: Array


class Llama:
    """A decoder with its weights in the arrays of one backend.

    Parameters
    ----------
    config
        Shapes and constants.
    weights
        Where the weights are read from, once, layer by layer.
    backend
        A backend, its name, or that of one of its paths (``"numpy:tiled"``), for weights, caches and attention;
        default: context, environment, ``"numpy"``.
    dtype
        Element type of the weights, and of everything computed from them.

    Raises
    ------
    ModelError
        If the weights do not fit the configuration.
    DTypeError
        If there is no such element type.
    """

    def __init__(
        self, config: LlamaConfig, weights: Weights, *, backend: str | Backend | None = None, dtype: DType = "float32"
    ) -> None:
        if dtype not in DTYPES:
            raise DTypeError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        check_shapes(weights.origin, weights.shapes, expected_shapes(config))
        self.config = config
        self.choice = _chosen(backend)
        self.backend = self.choice if isinstance(self.choice, Backend) else get_backend(self.choice.partition(":")[0])
        self.dtype = dtype
        # The embedding is held as [n, V] alone: the output projection reads it all for every token, a look-up little.
        self._embed = self._matrix(weights.read("embed"))
        self._head = self._embed if config.tie_embeddings else self._matrix(weights.read("head"))
        self._norm = self._array(weights.read("norm"))
        self._rope = RopeConfig(theta=config.rope_theta)
        self._xp = namespace(self._norm)
        self._shares = self._xp.full_like(widened(self._norm, self._xp)[:, None], 1 / config.hidden_size)
        self._blocks = [self._block(weights.read, f"layers.{layer}.") for layer in range(config.num_layers)]

    def make_cache(self, *, batch_size: int = 1, max_length: int | None = None) -> KVCache:
        """Make an empty contiguous cache of the shape, dtype and backend of this model."""
        config = KVCacheConfig(
            num_layers=self.config.num_layers,
            batch_size=batch_size,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            max_length=max_length,
            dtype=self.dtype,
        )
        return make_cache(config, backend=self.choice)

    def forward(self, token_ids: TokenIds, cache: KVCache | None = None, *, all_logits: bool = False) -> Array:
        """Give the logits of the next token.

        Parameters
        ----------
        token_ids
            ``[T]`` or ``[B, T]`` integers, ``T >= 1``.
        cache
            Holds what came before; the tokens are appended to it. Without one, attention is over ``token_ids`` alone.
        all_logits
            Give the logits after every token and not only after the last.

        Returns
        -------
        ``[1, V]`` or ``[T, V]`` in the backend's arrays, with a leading ``B`` if ``token_ids`` has one.

        Raises
        ------
        ShapeError
            If ``token_ids`` is empty, not of integers, out of the vocabulary, or longer than the model's context.
        """
        hidden = self.hidden(token_ids, cache)
        return self.logits(hidden if all_logits else hidden[..., -1:, :])

    def hidden(self, token_ids: TokenIds, cache: KVCache | None = None) -> Array:
        """Give the normalised hidden vectors after every token, ``[T, n]`` or ``[B, T, n]``; see ``forward``."""
        ids = self._checked(token_ids)
        tables = self._rope_tables(ids if ids.ndim == 2 else ids[None], cache)
        x = widened(self._looked_up(ids.reshape(-1)), self._xp)  # sums over layers are float32 or wider
        for layer, block in enumerate(self._blocks):
            x = x + self._attention(self._normed(x), layer, block, tables, cache)
            x = x + self._mlp(self._normed(x), block)
        return self._xp.reshape(self._normed(x) * self._norm, (*ids.shape, -1))

    def logits(self, hidden: Array) -> Array:
        """Project hidden vectors ``[..., n]`` on the vocabulary, ``[..., V]``."""
        return project(hidden, self._head, self._xp)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """Copy an array of the model's backend into a NumPy one."""
        return self.backend.to_numpy(array)

    def _attention(
        self, x: Array, layer: int, block: _Block, tables: tuple[Array, Array], cache: KVCache | None
    ) -> Array:
        config, xp = self.config, self._xp
        batch, _, length, _ = tables[0].shape
        turned = config.num_heads + config.num_kv_heads
        projected = project(x, block.qkv, xp)
        heads = xp.permute_dims(xp.reshape(projected, (batch, length, -1, config.head_dim)), (0, 2, 1, 3))
        rotated = apply_rope(self._rope, heads[:, :turned], tables)
        query, key, value = rotated[:, : config.num_heads], rotated[:, config.num_heads :], heads[:, turned:]
        if cache is None:
            mixed = attention(query, key, value, mask=_CAUSAL, backend=self.choice)
        else:
            cache[layer].append(key, value)
            mixed = cache[layer].attend(query, mask=_CAUSAL)
        return project(xp.reshape(xp.permute_dims(mixed, (0, 2, 1, 3)), (batch * length, -1)), block.out, xp)

    def _mlp(self, x: Array, block: _Block) -> Array:
        inner, xp = self.config.intermediate_size, self._xp
        both = project(x, block.gate_up, xp)
        return project(swiglu(both[..., :inner], both[..., inner:], xp), block.down, xp)

    def _normed(self, x: Array) -> Array:
        return as_type(rms_norm(x, self._shares, self.config.rms_norm_eps, self._xp), self._norm.dtype, self._xp)

    def _looked_up(self, ids: np.ndarray[Any, Any]) -> Array:
        """Give the embeddings ``[N, n]`` of ids ``[N]``; flattened on the way, which makes the rows contiguous."""
        rows = self._embed.T[self.backend.from_numpy(ids)]  # take() would copy a matrix that is seen transposed
        return self._xp.reshape(self._xp.reshape(rows, (-1,)), (len(ids), -1))

    def _rope_tables(self, ids: np.ndarray[Any, Any], cache: KVCache | None) -> tuple[Array, Array]:
        """Give cosines and sines ``[B, 1, T, D/2]`` for the positions of ids ``[B, T]``."""
        batch, length = ids.shape
        start = np.zeros(batch, np.int64) if cache is None else np.asarray(cache.next_position)
        if start.shape != (batch,):
            raise ShapeError(f"token_ids has {batch} sequences [B, T], the cache has {len(start)}")
        end = int(start.max(initial=0)) + length
        if end > self.config.max_positions:
            raise ShapeError(f"token_ids ends at position {end}; the model's context is {self.config.max_positions}")
        return rope_tables(self._rope, self.config.head_dim, start[:, None] + np.arange(length), self._norm)

    def _checked(self, token_ids: TokenIds) -> np.ndarray[Any, np.dtype[np.int64]]:
        ids = np.asarray(token_ids)
        if ids.ndim not in (1, 2) or not ids.size:
            raise ShapeError(f"token_ids must be [T] or [B, T] with at least one token, got {list(ids.shape)}")
        if ids.dtype.kind not in "iu":
            raise ShapeError(f"token_ids must be integers, got {ids.dtype}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.config.vocab_size:
            raise ShapeError(f"token_ids must be in 0 ... {self.config.vocab_size - 1}, got {low if low < 0 else high}")
        return ids.astype(np.int64, copy=False)

    @np.errstate(all="ignore")  # what a damaged file holds is seen in the text
    def _block(self, read: Callable[[str], np.ndarray[Any, Any]], prefix: str) -> _Block:
        attn_norm, mlp_norm = (read(prefix + name).astype(np.float64) for name in ("attn_norm", "mlp_norm"))
        qkv = np.concatenate([read(prefix + name) for name in ("q", "k", "v")])
        gate_up = np.concatenate([read(prefix + "gate") / 2, read(prefix + "up")])
        return _Block(
            qkv=self._matrix(qkv * attn_norm),
            out=self._matrix(read(prefix + "o")),
            gate_up=self._matrix(gate_up * mlp_norm),
            down=self._matrix(read(prefix + "down")),
        )

    def _array(self, array: np.ndarray[Any, Any]) -> Array:
        return self.backend.from_numpy(array.astype(self.dtype, copy=False))

    def _matrix(self, array: np.ndarray[Any, Any]) -> Array:
        """Take ``[out, in]`` to ``[in, out]`` in the memory order that a product with one row reads fastest.

        Such a product reads the matrix once, at the speed of memory. In single and double precision runs along the
        longer axis are what BLAS streams fastest (measured: up to 1.7 times the other order). Half precision on a CPU
        without instructions for it has fast dot products alone, which run along ``in`` (torch: 2 to 30 times).
        """
        rows, columns = array.shape
        if rows >= columns and self.dtype in ("float32", "float64"):
            return self._array(np.ascontiguousarray(array.T))
        return self._array(np.ascontiguousarray(array)).T


def _chosen(argument: str | Backend | None) -> str | Backend:
    """Resolve the choice once: weights and caches must lie with one backend."""
    choice = current_choice(argument)
    first = choice[0] if isinstance(choice, tuple) else choice
    return "numpy" if first is None else first
