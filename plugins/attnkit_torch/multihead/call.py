"""One call of the module on projected heads: attention, and the weights where they are wanted.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit import AttentionConfig, Backend, CacheLayer, Mask, attention, attention_with_lse
from attnkit_torch.place import as_tensor

Weighted = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class HeadsCall:
    """What a call asks for besides query, key and value.

    Attributes
    ----------
    config
        The module's mask, scale and soft-cap.
    keep, bias
        What ``keep_and_bias`` gave.
    is_causal
        Whether query ``i`` sees the keys up to ``i`` only.
    zero_attn
        Whether a key and value of zeros take part: a sink whose logit is 0.
    need_weights
        Whether the weights are wanted.
    backend
        As in ``attention``.
    """

    config: AttentionConfig
    keep: Tensor | None
    bias: Tensor | None
    is_causal: bool
    zero_attn: bool
    need_weights: bool
    backend: str | Backend | Sequence[str | Backend] | None

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Weighted:
        """Give the output ``[B, H, T, D]`` and the weights ``[B, H, T, S]`` or ``None``."""
        options = self._options(query)
        if self.is_causal:
            options["query_offset"] = 0
        if not self.need_weights:
            return attention(query, key, value, **options, backend=self.backend), None
        output, lse = attention_with_lse(query, key, value, **options, backend=self.backend)
        return output, self._weights(query, key, lse, None)

    def attend_cached(self, query: Tensor, key: Tensor, value: Tensor, cache: CacheLayer) -> Weighted:
        """Append to a cache and attend over all of it."""
        cache.append(key, value)
        options = self._options(query)
        if not self.need_weights:
            return cache.attend(query, **options), None
        output, lse = cache.attend_with_lse(query, **options)
        stored = cache.read()[0]
        stored = as_tensor(stored) if isinstance(stored, np.ndarray) else stored
        return output, self._weights(query, stored, lse, cache.stored)

    def _options(self, query: Tensor) -> dict[str, Any]:
        own = self._own_mask()
        dense = None if self.keep is None else Mask.dense(self.keep)
        return {
            "mask": own if dense is None else dense if own is None else own & dense,
            "scale": self.config.scale,
            "softcap": self.config.softcap,
            "bias": self.bias,
            "sinks": query.new_zeros(query.shape[1]) if self.zero_attn else None,
        }

    def _own_mask(self) -> Mask | None:
        if not self.is_causal:
            return self.config.mask
        return Mask.causal() if self.config.mask is None else Mask.causal() & self.config.mask

    def _weights(self, query: Tensor, key: Tensor, lse: Tensor, stored: Any) -> Tensor:
        """Give ``exp(scores - lse)``, whose sum over the keys (and the sink) is 1, or 0 where a query sees none."""
        with torch.autocast(query.device.type, enabled=False):
            scores = self._scores(query.to(lse.dtype), key.to(lse.dtype))
            shown = self._shown(query.shape[2], key.shape[2], stored).to(query.device) & torch.isfinite(lse)[..., None]
            logs = torch.where(shown, scores - lse[..., None], -torch.inf)
            if self.zero_attn:
                logs = torch.cat([logs, -lse[..., None]], dim=-1)
            return logs.exp().to(query.dtype)

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        config, group = self.config, query.shape[1] // key.shape[1]
        scale = config.head_dim**-0.5 if config.scale is None else config.scale
        folded = query.unflatten(1, (key.shape[1], group)).flatten(2, 3)
        scores = (scale * folded @ key.mT).unflatten(2, (group, query.shape[2])).flatten(1, 2)
        if config.softcap is not None:
            scores = config.softcap * torch.tanh(scores / config.softcap)
        return scores if self.bias is None else scores + self.bias.to(scores.dtype)

    def _shown(self, queries: int, keys: int, stored: Any) -> Tensor:
        """Give what the masks and the lengths of a cache show, broadcastable to ``[B, H, T, S]``."""
        mask = self._own_mask()
        shown = np.ones((queries, keys), np.bool_)
        if mask is not None:
            offset = 0 if self.is_causal else None if stored is None else stored - queries
            shown = mask.as_array(queries, keys, query_offset=offset)
        if stored is not None:
            shown = shown & (np.arange(keys) < stored[:, None])[:, None, None]
        visible = as_tensor(shown)
        return visible if self.keep is None else visible.to(self.keep.device) & self.keep
