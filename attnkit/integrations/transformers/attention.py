"""The function that models of transformers call for attention.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.utils import output_capturing

from attnkit.api import attention
from attnkit.backend import Backend
from attnkit.errors import DTypeError, Reason, ShapeError, UnsupportedError
from attnkit.integrations.transformers.counting import note
from attnkit.integrations.transformers.masks import MaskTensor
from attnkit.masks import Mask

BackendChoice = str | Backend | Sequence[str | Backend] | None

_CHANGES_THE_RESULT = {
    "block_indices": "sparse attention over selected blocks",
    "indices": "sparse attention over selected keys",
    "sinks": "a sink for each query",
}


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    backend: BackendChoice = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer of a model.

    Parameters
    ----------
    module
        The attention module; without a mask its ``is_causal`` counts, unless that is an argument.
    query, key, value
        ``[B, H, T, D]``, ``[B, K, S, D]``, ``[B, K, S, E]``, any strides; ``B`` may be 1 where it is not for all.
    attention_mask
        ``[B, 1, T, S]``, booleans (``True`` = visible) or floats to be added, or what ``make_mask`` gives. It holds all
        there is to hide: windows and padding too. ``None``: one query sees everything; several see the keys up to their
        own index where the module is causal, counted from the first key, as in transformers.
    dropout
        Must be 0 in training.
    scaling
        Scale of the scores; ``None`` means ``1 / sqrt(D)``, as in transformers.
    softcap, s_aux
        Soft-cap; sink logits ``[H]``.
    position_bias
        Added to the scores, broadcastable to ``[B, H, T, S]``.
    backend
        As in ``attnkit.attention``.
    others
        What else the model passes: ``sliding_window`` is in the mask already, most of the rest is for others.

    Returns
    -------
    ``[B, T, H, E]``, contiguous, and ``None``: weights are not computed.

    Raises
    ------
    UnsupportedError
        If the model asks for dropout, for the weights, or for something that would be ignored; and as in
        ``attnkit.attention``.
    ShapeError, DTypeError
        If the mask is of another kind; and as in ``attnkit.attention``.
    """
    note(module)
    _refuse(module, dropout, attention_mask, others)
    query, key, value = _same_batch(query, key, value)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    output = attention(
        query,
        key,
        value,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        backend=backend,
        **_visibility(attention_mask, position_bias, causal and query.shape[2] > 1),
    )
    return output.transpose(1, 2).contiguous(), None


def _visibility(mask: Tensor | None, bias: Tensor | None, causal: bool) -> dict[str, Any]:
    """Give the arguments that say what is visible, and the bias."""
    if mask is None:
        # Top-left: transformers gives no mask for a prompt at the start of a longer, still empty static cache.
        return {"mask": Mask.causal(), "query_offset": 0, "bias": bias} if causal else {"bias": bias}
    if isinstance(mask, MaskTensor) and mask.untouched:
        return {**mask.arguments, "bias": bias}
    mask = mask.plain() if isinstance(mask, MaskTensor) else _check_mask(mask)
    if mask.dtype == torch.bool:
        return {"mask": Mask.dense(mask), "bias": bias}
    return {"bias": mask if bias is None else bias + mask}


def _check_mask(mask: Any) -> Tensor:
    if not isinstance(mask, torch.Tensor):
        raise DTypeError(f"attention_mask must be a tensor [B, 1, T, S] or None, got {type(mask).__name__}")
    if mask.ndim != 4:
        raise ShapeError(f"attention_mask must be [B, 1, T, S] where attention is computed, got {list(mask.shape)}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise DTypeError(f"attention_mask must hold booleans, or floats to be added, got {mask.dtype}")
    return mask


def _same_batch(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Let a batch of one go with a larger one: learned queries are passed so."""
    batch = max(tensor.shape[0] for tensor in tensors)
    return tuple(tensor.expand(batch, -1, -1, -1) if tensor.shape[0] == 1 < batch else tensor for tensor in tensors)


def _refuse(module: torch.nn.Module, dropout: float, mask: Tensor | None, others: Mapping[str, Any]) -> None:
    """Raise an error for what would otherwise be dropped without a word."""
    if dropout and module.training:
        hint = "set the attention dropout of the config to 0"
        raise _unsupported("dropout", "0 in training", dropout, hint)
    if others.get("output_attentions") or _weights_wanted():
        hint = "model.set_attn_implementation('eager') computes weights"
        raise _unsupported("output_attentions", "False", True, hint)
    for name, meaning in _CHANGES_THE_RESULT.items():
        if others.get(name) is not None:
            raise _unsupported(name, "None", meaning, "use attn_implementation='eager' for this model")
    packed = others.get("cu_seq_lens_q")
    if mask is None and packed is not None and len(packed) > 2:
        hint = "give position_ids that start anew in each sequence, or a mask"
        raise _unsupported("cu_seq_lens_q", "None without a mask", f"{len(packed) - 1} packed sequences", hint)


def _weights_wanted() -> bool:
    """Tell whether the model collects attention weights: without any it would give an empty tuple."""
    if torch.compiler.is_compiling():  # which cannot follow context variables
        return False
    collector = getattr(output_capturing, "_active_collector", None)
    wanted = None if collector is None else collector.get()
    return any(name.endswith("attentions") for name in wanted or ())


def _unsupported(name: str, required: str, actual: object, hint: str) -> UnsupportedError:
    reason = Reason(name, name, required, str(actual), hint)
    return UnsupportedError("attnkit does not take this call of transformers:", {"attnkit": (reason,)})
