"""MultiHeadAttention: projections, heads, rotary positions and a cache around ``attention``.

Axes: ``B`` batch, ``T`` query length, ``S`` length of the context, ``M`` model size, ``H`` query heads, ``K`` key/value
heads, ``D`` head size, ``E`` value head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnkit.api import BackendChoice, attention
from attnkit.arrays import namespace
from attnkit.cache.layer import CacheLayer
from attnkit.checks import check_array
from attnkit.config import AttentionConfig
from attnkit.errors import DTypeError, ShapeError
from attnkit.positional import apply_rope, rope_tables

Array = Any


class MultiHeadAttention:
    """Multi-head attention on arrays of any library.

    Parameters
    ----------
    config
        Heads, sizes, mask, scale, soft-cap and rotary positions.
    wq, wk, wv, wo
        Weights ``[M, H D]``, ``[M_context, K D]``, ``[M_context, K E]``, ``[H E, M_out]``, applied from the right:
        ``x @ wq``.
    bq, bk, bv, bo
        Optional biases of the projections.
    backend
        As in ``attention``; a call with a cache runs on the cache's.

    Raises
    ------
    ShapeError, DTypeError
        If a weight or bias is no array, or does not fit the configuration.
    """

    def __init__(
        self,
        config: AttentionConfig,
        wq: Array,
        wk: Array,
        wv: Array,
        wo: Array,
        *,
        bq: Array | None = None,
        bk: Array | None = None,
        bv: Array | None = None,
        bo: Array | None = None,
        backend: BackendChoice = None,
    ) -> None:
        if not isinstance(config, AttentionConfig):
            raise DTypeError(f"config must be an AttentionConfig, got {type(config).__name__}")
        self.config = config
        self.backend = backend
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo
        self.bq, self.bk, self.bv, self.bo = bq, bk, bv, bo
        heads, kv_heads = config.num_heads, config.num_kv_heads
        _check_projection("wq", wq, "[M, H D]", 1, heads * config.head_dim, bq)
        _check_projection("wk", wk, "[M, K D]", 1, kv_heads * config.head_dim, bk)
        _check_projection("wv", wv, "[M, K E]", 1, kv_heads * config.value_dim, bv)
        _check_projection("wo", wo, "[H E, M]", 0, heads * config.value_dim, bo)
        if wk.shape[0] != wv.shape[0]:
            raise ShapeError(f"wk and wv must have the same M, got {wk.shape[0]} and {wv.shape[0]}")

    def __call__(
        self,
        x: Array,
        context: Array | None = None,
        *,
        cache: CacheLayer | None = None,
        positions: Array | None = None,
        query_lengths: Array | int | None = None,
        kv_lengths: Array | int | None = None,
    ) -> Array:
        """Attend.

        Parameters
        ----------
        x
            Queries' source, ``[T, M]`` or ``[B, T, M]``.
        context
            Keys' and values' source for cross-attention, ``[S, M]`` or ``[B, S, M]``; default: ``x``.
        cache
            A layer of a KV cache of any layout, with the sequences of ``x``: keys and values are appended to it, and
            queries attend over all that it holds. With ``query_lengths`` each sequence appends its own number of
            tokens. A ring that takes several tokens at once holds more than its window, so a mask with
            ``Mask.window(window)`` makes the output the same however ``x`` is cut.
        positions
            Integers ``[T]`` or ``[B, T]`` for the rotary embedding; default: from 0, or from the cache's next position.
        query_lengths, kv_lengths
            Valid tokens of each sequence in ``x`` and in ``context``; a cache knows its own ``kv_lengths``.

        Returns
        -------
        ``[T, M_out]`` or ``[B, T, M_out]``.

        Raises
        ------
        DTypeError
            If ``x`` or ``context`` is no array, or ``cache`` no layer of a cache.
        ShapeError
            If shapes do not fit, ``context`` meets rotary positions or a cache, or ``kv_lengths`` a cache.
        CacheCapacityError
            If the cache does not take so many tokens.
        """
        self._check(x, context, cache)
        if cache is not None and kv_lengths is not None:
            raise ShapeError("kv_lengths does not go with a cache, which knows how much it holds; drop it")
        source = x if context is None else context
        if len(x.shape) == 2:
            batched = self._run(x[None], source[None], cache, positions, query_lengths, kv_lengths, context is not None)
            return batched[0]
        return self._run(x, source, cache, positions, query_lengths, kv_lengths, context is not None)

    def _run(
        self,
        x: Array,
        source: Array,
        cache: CacheLayer | None,
        positions: Array | None,
        query_lengths: Array | int | None,
        kv_lengths: Array | int | None,
        crossed: bool,
    ) -> Array:
        config = self.config
        query = _split(_project(x, self.wq, self.bq), config.num_heads)
        key = _split(_project(source, self.wk, self.bk), config.num_kv_heads)
        value = _split(_project(source, self.wv, self.bv), config.num_kv_heads)
        if config.rope is not None:
            tables = rope_tables(config.rope, config.head_dim, self._positions(x, cache, positions), query)
            query, key = apply_rope(config.rope, query, tables), apply_rope(config.rope, key, tables)
        if cache is not None:
            cache.append(key, value, lengths=query_lengths)
            output = cache.attend(query, mask=config.mask, scale=config.scale, softcap=config.softcap)
        else:
            output = attention(
                query,
                key,
                value,
                mask=config.mask,
                scale=config.scale,
                softcap=config.softcap,
                query_lengths=query_lengths,
                kv_lengths=kv_lengths if crossed or kv_lengths is not None else query_lengths,
                backend=self.backend,
            )
        return _project(_join(output), self.wo, self.bo)

    def _positions(self, x: Array, cache: CacheLayer | None, positions: Array | None) -> Array:
        if positions is not None:
            shape, batch, tokens = tuple(np.shape(positions)), x.shape[0], x.shape[1]
            if shape not in ((tokens,), (batch, tokens)):
                raise ShapeError(
                    f"positions must be [T] = [{tokens}] or [B, T] = [{batch}, {tokens}], got {list(shape)}"
                )
            return positions
        steps = np.arange(x.shape[1])
        if cache is None:
            return steps
        start = cache.next_position
        if len(start) != x.shape[0]:
            raise ShapeError(f"x must hold the {len(start)} sequences of the cache, [B, T, M], got {list(x.shape)}")
        return start[:, None] + steps

    def _check(self, x: Array, context: Array | None, cache: CacheLayer | None) -> None:
        check_array("x", x)
        if context is not None:
            check_array("context", context)
        size = self.wq.shape[0]
        if len(x.shape) not in (2, 3) or x.shape[-1] != size:
            raise ShapeError(f"x must be [T, M] or [B, T, M] with M = {size}, got {list(x.shape)}")
        if cache is not None and not all(hasattr(cache, name) for name in ("append", "attend", "next_position")):
            raise DTypeError(f"cache must be one layer of a cache, cache[layer], got {type(cache).__name__}")
        source = x if context is None else context
        if (
            len(source.shape) != len(x.shape)
            or source.shape[:-2] != x.shape[:-2]
            or source.shape[-1] != self.wk.shape[0]
        ):
            raise ShapeError(
                f"context must have x's rank and batch and M = {self.wk.shape[0]}, "
                f"got {list(source.shape)} for x {list(x.shape)}"
            )
        if context is not None and (cache is not None or self.config.rope is not None):
            part = "a cache" if cache is not None else "rope"
            raise ShapeError(
                f"context (cross-attention) does not go with {part}: its tokens have no place in the sequence of x"
            )


def _project(x: Array, weight: Array, bias: Array | None) -> Array:
    projected = x @ weight
    return projected if bias is None else projected + bias


def _split(x: Array, heads: int) -> Array:
    """``[B, T, heads * D]`` -> ``[B, heads, T, D]``."""
    xp = namespace(x)
    return xp.permute_dims(xp.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads)), (0, 2, 1, 3))


def _join(x: Array) -> Array:
    """``[B, H, T, E]`` -> ``[B, T, H * E]``."""
    xp = namespace(x)
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (x.shape[0], x.shape[2], x.shape[1] * x.shape[3]))


def _check_projection(name: str, weight: Array, symbols: str, axis: int, size: int, bias: Array | None) -> None:
    check_array(name, weight)
    if len(weight.shape) != 2 or weight.shape[axis] != size:
        raise ShapeError(f"{name} must be {symbols} with {size} on axis {axis}, got {list(weight.shape)}")
    if bias is None:
        return
    check_array(f"b{name[1:]}", bias)
    if tuple(bias.shape) != (weight.shape[1],):
        raise ShapeError(f"b{name[1:]} must be [{weight.shape[1]}], got {list(bias.shape)}")
