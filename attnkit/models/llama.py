"""A Llama-family decoder whose attention and KV cache are attnkit's, so that every backend runs it.

Axes: ``B`` sequences, ``T`` tokens of the longest, ``N`` tokens of all, ``n`` hidden, ``H`` query heads, ``K``
key/value heads, ``D`` head size, ``V`` vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnkit.api import attention, get_backend, make_cache
from attnkit.arrays import DTYPES, namespace
from attnkit.backend import Backend
from attnkit.cache.base import KVCache
from attnkit.cache.config import KVCacheConfig
from attnkit.cache.pool import PagePool
from attnkit.config import DType, RopeConfig
from attnkit.errors import DTypeError, ShapeError
from attnkit.masks import Mask
from attnkit.models.blocks import Block, Maker
from attnkit.models.config import LlamaConfig
from attnkit.models.layers import as_type, project, rms_norm, swiglu, widened
from attnkit.models.rows import Rows, TokenIds
from attnkit.models.weights import Weights, check_shapes, expected_shapes
from attnkit.positional import apply_rope, rope_tables
from attnkit.selection import current_choice

Array = Any
_CAUSAL = Mask.causal()


class _Pass(NamedTuple):
    """What all layers of one forward pass share: tokens, rotary tables ``[B, 1, T, D]``, mask and cache."""

    rows: Rows
    tables: tuple[Array, Array]
    mask: Mask
    cache: KVCache | None


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
        make = Maker(self.backend, dtype)
        # The embedding is held as [n, V] alone: the output projection reads it all for every token, a look-up little.
        self._embed = make.matrix(weights.read("embed"))
        self._head = self._embed if config.tie_embeddings else make.matrix(weights.read("head"))
        self._norm = make.array(weights.read("norm"))
        self._rope = RopeConfig(theta=config.rope_theta)
        self._xp = namespace(self._norm)
        self._shares = self._xp.full_like(widened(self._norm, self._xp)[:, None], 1 / config.hidden_size)
        self._blocks = [make.block(weights.read, f"layers.{layer}.") for layer in range(config.num_layers)]

    def make_cache(
        self, *, batch_size: int = 1, max_length: int | None = None, pool: PagePool | None = None, **fields: Any
    ) -> KVCache:
        """Make an empty cache of the shape and backend of this model.

        Parameters
        ----------
        batch_size, max_length
            Sequences to begin with, and tokens that each may hold; ``None`` = no limit.
        pool
            Where a paged cache takes its pages from; default: a pool of its own.
        fields
            More of ``KVCacheConfig``, such as ``layout="paged", page_size=16, codec="int8"``; ``dtype`` is the model's
            by default.

        Raises
        ------
        ValueError
            If the fields do not go together.
        UnsupportedError
            If the backend cannot hold such a cache.
        """
        config = KVCacheConfig(
            num_layers=self.config.num_layers,
            batch_size=batch_size,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            max_length=max_length,
            **{"dtype": self.dtype} | fields,
        )
        return make_cache(config, backend=self.choice, pool=pool)

    def forward(
        self,
        token_ids: TokenIds,
        cache: KVCache | None = None,
        *,
        lengths: Array | int | None = None,
        all_logits: bool = False,
    ) -> Array:
        """Give the logits of the next token.

        Parameters
        ----------
        token_ids
            ``[T]`` or ``[B, T]`` integers, ``T >= 1``.
        cache
            Holds what came before; the tokens are appended to it. Without one, attention is over ``token_ids`` alone. A
            ring shows each token the last ``window``, however they are cut into calls.
        lengths
            How many of the ``T`` tokens each sequence has, ``[B]`` integers or one, 0 too; the rest is padding, which
            is not looked at and costs nothing outside of attention.
        all_logits
            Give the logits after every token and not only after each sequence's last.

        Returns
        -------
        ``[1, V]`` or ``[T, V]`` in the backend's arrays, with a leading ``B`` if ``token_ids`` has one; zeros where
        there is no token.

        Raises
        ------
        ShapeError
            If ``token_ids`` is empty, not of integers, out of the vocabulary, or longer than the model's context, or
            ``lengths`` does not fit.
        CacheCapacityError
            If the cache does not take so many tokens, at once or at all; it stays as it was.
        """
        rows = self._rows(token_ids, lengths)
        x = self._run(rows, cache)
        logits = rows.spread(self.logits(x)) if all_logits else self.logits(rows.last(x))
        return logits if rows.has_batch else logits[0]

    def hidden(self, token_ids: TokenIds, cache: KVCache | None = None, *, lengths: Array | int | None = None) -> Array:
        """Give the normalised hidden vectors after every token, ``[T, n]`` or ``[B, T, n]``; see ``forward``."""
        rows = self._rows(token_ids, lengths)
        x = rows.spread(self._run(rows, cache))
        return x if rows.has_batch else x[0]

    def check_ids(self, token_ids: TokenIds) -> None:
        """Raise ``ShapeError`` unless token ids, ``[T]`` or ``[B, T]``, are integers of the vocabulary."""
        self._rows(token_ids, None)

    def logits(self, hidden: Array) -> Array:
        """Project hidden vectors ``[..., n]`` on the vocabulary, ``[..., V]``."""
        return project(hidden, self._head, self._xp)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """Copy an array of the model's backend into a NumPy one."""
        return self.backend.to_numpy(array)

    def _run(self, rows: Rows, cache: KVCache | None) -> Array:
        """Give the normalised hidden vectors of rows, ``[N, n]``."""
        run = _Pass(rows, self._rope_tables(rows, cache), _mask(cache), cache)
        x = widened(self._looked_up(rows.ids), self._xp)  # sums over layers are float32 or wider
        for layer, block in enumerate(self._blocks):
            x = x + self._attention(self._normed(x), layer, block, run)
            x = x + self._mlp(self._normed(x), block)
        return self._normed(x) * self._norm

    def _attention(self, x: Array, layer: int, block: Block, run: _Pass) -> Array:
        config, xp, rows = self.config, self._xp, run.rows
        turned, count = config.num_heads + config.num_kv_heads, x.shape[0]
        shape = (count, turned + config.num_kv_heads, config.head_dim)
        placed = rows.spread(xp.reshape(project(x, block.qkv, xp), shape))
        heads = xp.permute_dims(placed, (0, 2, 1, 3))
        rotated = apply_rope(self._rope, heads[:, :turned], run.tables)
        query, key, value = rotated[:, : config.num_heads], rotated[:, config.num_heads :], heads[:, turned:]
        mixed = xp.permute_dims(self._attend(query, key, value, layer, run), (0, 2, 1, 3))
        joined = xp.reshape(rows.collect(mixed), (count, config.num_heads * config.head_dim))
        return project(joined, block.out, xp)

    def _attend(self, query: Array, key: Array, value: Array, layer: int, run: _Pass) -> Array:
        lengths = run.rows.lengths
        if run.cache is None:
            return attention(
                query, key, value, mask=run.mask, query_lengths=lengths, kv_lengths=lengths, backend=self.choice
            )
        run.cache[layer].append(key, value, lengths=lengths)
        return run.cache[layer].attend(query, mask=run.mask)

    def _mlp(self, x: Array, block: Block) -> Array:
        inner, xp = self.config.intermediate_size, self._xp
        both = project(x, block.gate_up, xp)
        return project(swiglu(both[..., :inner], both[..., inner:], xp), block.down, xp)

    def _normed(self, x: Array) -> Array:
        return as_type(rms_norm(x, self._shares, self.config.rms_norm_eps, self._xp), self._norm.dtype, self._xp)

    def _looked_up(self, ids: np.ndarray[Any, Any]) -> Array:
        """Give the embeddings ``[N, n]`` of ids ``[N]``; flattened on the way, which makes the rows contiguous."""
        rows = self._embed.T[self.backend.from_numpy(ids)]  # take() would copy a matrix that is seen transposed
        return self._xp.reshape(self._xp.reshape(rows, (-1,)), (len(ids), self.config.hidden_size))

    def _rope_tables(self, rows: Rows, cache: KVCache | None) -> tuple[Array, Array]:
        """Give cosines and sines ``[B, 1, T, D]`` for the positions of tokens, padding included."""
        start = np.zeros(rows.batch, np.int64) if cache is None else np.asarray(cache.next_position)
        if start.shape != (rows.batch,):
            raise ShapeError(f"token_ids has {rows.batch} sequences [B, T], the cache has {len(start)}")
        end = int((start + (rows.length if rows.lengths is None else rows.lengths)).max())
        if end > self.config.max_positions:
            raise ShapeError(f"token_ids ends at position {end}; the model's context is {self.config.max_positions}")
        return rope_tables(self._rope, self.config.head_dim, start[:, None] + np.arange(rows.length), self._norm)

    def _rows(self, token_ids: TokenIds, lengths: Array | int | None) -> Rows:
        rows = Rows.of(token_ids, lengths, self.backend.from_numpy)
        low, high = int(rows.ids.min(initial=0)), int(rows.ids.max(initial=0))
        if low < 0 or high >= self.config.vocab_size:
            raise ShapeError(f"token_ids must be in 0 ... {self.config.vocab_size - 1}, got {low if low < 0 else high}")
        return rows


def _chosen(argument: str | Backend | None) -> str | Backend:
    """Resolve the choice once: weights and caches must lie with one backend."""
    choice = current_choice(argument)
    first = choice[0] if isinstance(choice, tuple) else choice
    return "numpy" if first is None else first


def _mask(cache: KVCache | None) -> Mask:
    """Give what a token sees: all before it, or as much as a ring promises to keep for every one of an append."""
    window = None if cache is None else cache.config.window
    return _CAUSAL if window is None else _CAUSAL & Mask.window(window)
