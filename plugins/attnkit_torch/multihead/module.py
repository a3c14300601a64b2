"""TorchMultiHeadAttention: ``torch.nn.MultiheadAttention``'s parameters and arguments, with attnkit's attention inside.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``M`` model size,
``D = M / H`` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnkit import AttentionConfig, Backend, CacheLayer, Mask, RopeConfig, ShapeError, UnsupportedError
from attnkit_torch.multihead.call import HeadsCall
from attnkit_torch.multihead.heads import Heads, check_shapes, join_heads, rotate, split_heads, with_extra
from attnkit_torch.multihead.masks import keep_and_bias


class TorchMultiHeadAttention(nn.Module):  # type: ignore[misc]  # torch's types are not followed
    """A drop-in for ``torch.nn.MultiheadAttention`` that runs on attnkit.

    Parameters, their names, shapes and first values, and the arguments of ``forward`` are torch's, so that a
    ``state_dict`` goes either way. What is added stands behind ``dtype``. What differs:

    * A query that sees no key gives zeros, and zeros as its weights, where torch gives NaN.
    * ``is_causal=True`` is the causal mask by itself; torch demands an ``attn_mask`` beside it and may ignore that.
      Here both apply. It counts from the first key, as torch's does; ``mask=Mask.causal()`` puts the last query on the
      last key.
    * Dropout in training and nested tensors are refused; there is no way past ``forward`` into a fused kernel.

    Parameters
    ----------
    embed_dim, num_heads
        ``M`` and ``H``.
    dropout
        Anything but 0 is refused when the module is called in training.
    bias
        Whether the projections have biases.
    add_bias_kv
        One more key and value, learned, that every query sees.
    add_zero_attn
        One more key and value, of zeros, that every query sees.
    kdim, vdim
        Features of ``key`` and ``value``, ``M`` by default.
    batch_first
        Arrays are ``[B, T, M]``, not ``[T, B, M]``.
    device, dtype
        Of the parameters.
    num_kv_heads
        ``K``, ``H`` by default; keys and values then have ``K D`` rows each in ``in_proj_weight``.
    mask
        Which keys a query sees, in every call.
    rope
        Rotary position embedding; key ``j`` stands at ``j``, and queries where the mask has them.
    scale, softcap, backend
        As in ``attnkit.attention``; a call with a cache runs on the cache's backend.

    Raises
    ------
    ValueError
        If sizes or options do not fit each other.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        num_kv_heads: int | None = None,
        mask: Mask | None = None,
        rope: RopeConfig | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        backend: str | Backend | Sequence[str | Backend] | None = None,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ShapeError(f"embed_dim must be a multiple of num_heads, both >= 1, got {embed_dim} and {num_heads}")
        if add_bias_kv and (mask is not None or rope is not None):
            raise ShapeError("add_bias_kv does not go with mask or rope: its key has no position")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.config = AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
            head_dim=self.head_dim,
            mask=mask,
            scale=scale,
            softcap=softcap,
            rope=rope,
        )
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn, self.backend = dropout, batch_first, add_zero_attn, backend
        self._qkv_same_embed_dim = False  # torch's encoder layer asks this before it goes past forward
        self._make_parameters(bias, add_bias_kv, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters of the input anew as torch does: weights by Xavier, zeros for biases."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: CacheLayer | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Parameters
        ----------
        query, key, value
            ``[T, B, M]``, ``[S, B, kdim]``, ``[S, B, vdim]``; the same with ``B`` in front for ``batch_first``; or
            without ``B``.
        key_padding_mask
            ``[B, S]``, or ``[S]`` without a batch: booleans, True = hidden, or floats added to the scores.
        need_weights
            Give the weights too, for which all scores are computed at once; under ``torch.compile`` that breaks the
            graph, and without them the module is one graph.
        attn_mask
            ``[T, S]`` or ``[B H, T, S]``, of the same two kinds.
        average_attn_weights
            Average the weights over the heads.
        is_causal
            Query ``i`` sees the keys up to ``i``.
        cache
            A layer of a KV cache: keys and values are appended to it, and queries attend over all that it holds, which
            is then the ``S`` of the masks.

        Returns
        -------
        output, weights
            Like ``query``; ``[B, T, S]``, or ``[B, H, T, S]`` if not averaged, or ``None``.

        Raises
        ------
        ShapeError, DTypeError
            If the arguments do not fit each other.
        UnsupportedError
            If dropout, a nested tensor, or a gradient through a cache would be needed.
        """
        self._refuse(query, key, value, cache)
        check_shapes((query, key, value), (self.embed_dim, self.kdim, self.vdim), self.batch_first)
        heads = self._project(query, key, value)
        (batch, _, queries, _), stored = heads[0].shape, 0 if cache is None else int(cache.stored.max())
        keys = stored + heads[1].shape[2]
        self._check_causal(is_causal, queries, keys, cache)
        sizes = batch, self.num_heads, queries, keys
        keep, bias = keep_and_bias(attn_mask, key_padding_mask, sizes, query.dim() == 3)
        if self.config.rope is not None:
            heads = rotate(self.config.rope, heads, is_causal, cache)
        if self.bias_k is not None:
            heads = heads[0], with_extra(heads[1], self.bias_k), with_extra(heads[2], self.bias_v)
            keep = None if keep is None else functional.pad(keep, (0, 1), value=True)
            bias = None if bias is None else functional.pad(bias, (0, 1))
        call = HeadsCall(self.config, keep, bias, is_causal, self.add_zero_attn, need_weights, self.backend)
        output, weights = call.attend(*heads) if cache is None else call.attend_cached(*heads, cache)
        if weights is not None:
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if query.dim() == 3 else weights[0]
        return self.out_proj(join_heads(output, query.dim() == 3, self.batch_first)), weights

    def extra_repr(self) -> str:
        """Name the sizes, and the options that are set."""
        config = self.config
        sizes = {"embed_dim": self.embed_dim, "num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads}
        options = {name: getattr(config, name) for name in ("mask", "rope", "scale", "softcap")}
        named = sizes | options | {"backend": self.backend}
        return ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None)

    def _make_parameters(self, bias: bool, add_bias_kv: bool, place: dict[str, Any]) -> None:
        model, inner = self.embed_dim, self.config.num_kv_heads * self.head_dim
        joined = self.kdim == self.vdim == model
        shapes = {
            "in_proj_weight": (model + 2 * inner, model) if joined else None,
            "q_proj_weight": None if joined else (model, model),
            "k_proj_weight": None if joined else (inner, self.kdim),
            "v_proj_weight": None if joined else (inner, self.vdim),
            "in_proj_bias": (model + 2 * inner,) if bias else None,
            "bias_k": (1, 1, inner) if add_bias_kv else None,
            "bias_v": (1, 1, inner) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape, **place)))
        self.out_proj = nn.Linear(model, model, bias=bias, **place)

    def _refuse(self, query: Tensor, key: Tensor, value: Tensor, cache: CacheLayer | None) -> None:
        if self.dropout and self.training:
            raise UnsupportedError(f"dropout = {self.dropout} in training: make the module without, or call eval()")
        if query.is_nested or key.is_nested or value.is_nested:
            raise UnsupportedError("nested tensors: pad them, and hide the padding with key_padding_mask")
        needing = (key, value, *self.parameters())
        if cache is not None and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in needing):
            raise UnsupportedError("gradients through a cache, which holds copies: call under torch.no_grad()")

    def _check_causal(self, is_causal: bool, queries: int, keys: int, cache: CacheLayer | None) -> None:
        if cache is not None and (is_causal or self.bias_k is not None):
            what = "is_causal, which counts from the first key of a call" if is_causal else "add_bias_kv"
            raise ShapeError(f"a cache does not go with {what}; make the module with mask=Mask.causal()")
        if is_causal and self.bias_k is not None:
            raise ShapeError("is_causal does not go with add_bias_kv, whose key has no position; give attn_mask")
        if is_causal and self.config.mask is not None and queries != keys:
            raise ShapeError(f"is_causal counts from the first key, mask to the last: T = {queries} must be S = {keys}")

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Heads:
        """Give heads ``[B, H, T, D]``, ``[B, K, S, D]`` and ``[B, K, S, D]``; self-attention takes one product."""
        inner = self.config.num_kv_heads * self.head_dim
        sizes = [self.embed_dim, inner, inner]
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if weight is not None and query is key and key is value:
            projected = functional.linear(query, weight, bias).split(sizes, dim=-1)
        else:
            apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = apart if weight is None else weight.split(sizes)
            biases = (None, None, None) if bias is None else bias.split(sizes)
            projected = tuple(map(functional.linear, (query, key, value), weights, biases))
        query, key, value = (split_heads(part, self.head_dim, self.batch_first) for part in projected)
        return query, key, value
