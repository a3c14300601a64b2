"""Read the attention of a layer out of a Hugging Face ``config.json``.

Families: Llama, Mistral, Gemma (1-3), Qwen (2, 3) and GPT-2. A feature that ``AttentionConfig`` cannot express is
refused by name rather than dropped. Layers around attention, such as the norms that Qwen 3 and Gemma 3 apply to each
head of query and key, are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnkit.masks import Mask

Config = Mapping[str, Any]
Fields = dict[str, Any]


def attention_fields(config: Config, layer: int) -> Fields:
    """Give the fields of ``AttentionConfig`` for one layer.

    Raises
    ------
    ValueError
        If the family is unknown, a key is missing, the layer does not exist, or a feature is not expressible.
    """
    config = config.get("text_config") or config
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(sorted(_FAMILIES))}, got {family!r}")
    layers = _need(config, "n_layer" if family == "gpt2" else "num_hidden_layers")
    if not 0 <= layer < layers:
        raise ValueError(f"layer must lie in 0..{layers - 1}, got {layer}")
    try:
        return _FAMILIES[family](config, layer)
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"the configuration is not one of {family}: {type(error).__name__}: {error}") from error


def _llama(config: Config, _layer: int) -> Fields:
    heads = _need(config, "num_attention_heads")
    head_dim = config.get("head_dim") or _head_dim(config, "hidden_size", heads)
    return {
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "mask": Mask.causal(),
        "rope": _rope(config, head_dim),
    }


def _mistral(config: Config, layer: int) -> Fields:
    return {**_llama(config, layer), "mask": _causal(config.get("sliding_window"))}


def _qwen(config: Config, layer: int) -> Fields:
    slides = config.get("use_sliding_window", False) and _slides(
        config, layer, layer >= config.get("max_window_layers", 28)
    )
    return {**_llama(config, layer), "mask": _causal(config.get("sliding_window") if slides else None)}


def _gemma2(config: Config, layer: int) -> Fields:
    fields = _llama(config, layer)
    fields["mask"] = _causal(config.get("sliding_window") if _slides(config, layer, layer % 2 == 0) else None)
    fields["scale"] = _need(config, "query_pre_attn_scalar") ** -0.5
    fields["softcap"] = config.get("attn_logit_softcapping")
    return fields


def _gemma3(config: Config, layer: int) -> Fields:
    if config.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is not supported")
    slides = _slides(config, layer, bool((layer + 1) % config.get("sliding_window_pattern", 6)))
    kind = "sliding_attention" if slides else "full_attention"
    if slides:
        theta, scaling = config.get("rope_local_base_freq", 1e4), None  # only full attention is scaled
    else:
        theta, scaling = config.get("rope_theta", 1e6), config.get("rope_scaling")
    parameters: Config = config.get("rope_parameters") or {}
    own: Config = parameters.get(kind, {} if slides else parameters)
    rope = {"rope_theta": theta, **own}
    layer_types = [kind] * (layer + 1)
    return _gemma2({**config, "layer_types": layer_types, "rope_parameters": rope, "rope_scaling": scaling}, layer)


def _gpt2(config: Config, layer: int) -> Fields:
    heads = _need(config, "n_head")
    head_dim = _head_dim(config, "n_embd", heads)
    scale = head_dim**-0.5 if config.get("scale_attn_weights", True) else 1.0
    if config.get("scale_attn_by_inverse_layer_idx"):
        scale /= layer + 1
    return {"num_heads": heads, "head_dim": head_dim, "mask": Mask.causal(), "scale": scale}


_FAMILIES: dict[str, Callable[[Config, int], Fields]] = {
    "llama": _llama,
    "mistral": _mistral,
    "gemma": _llama,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "gpt2": _gpt2,
}


def _rope(config: Config, head_dim: int) -> Fields:
    rope = config.get("rope_parameters") or {}
    if any(isinstance(part, Mapping) for part in rope.values()):
        raise ValueError(f"rope_parameters that differ by kind of layer are not supported, got {sorted(rope)}")
    scaling = config.get("rope_scaling") or rope
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope_scaling of type {kind!r} is not supported; only 'default' is")
    fields: Fields = {"theta": rope.get("rope_theta", config.get("rope_theta", 10000.0))}
    fraction = float(rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    return fields if fraction == 1.0 else {**fields, "dim": int(head_dim * fraction)}


def _slides(config: Config, layer: int, otherwise: bool) -> bool:
    """Tell whether a layer has a window: ``layer_types`` says so, else the family's rule."""
    kinds = config.get("layer_types")
    return otherwise if kinds is None else bool(kinds[layer] == "sliding_attention")


def _causal(window: int | None) -> Mask:
    return Mask.causal() if window is None else Mask.causal() & Mask.window(window)


def _need(config: Config, key: str) -> int:
    if not isinstance(config.get(key), int):
        raise ValueError(f"{key} must be an integer in the configuration, got {config.get(key)!r}")
    return int(config[key])


def _head_dim(config: Config, key: str, heads: int) -> int:
    size = _need(config, key)
    if heads < 1 or size % heads:
        raise ValueError(f"{key} must be a multiple of the number of heads, got {size} and {heads}")
    return size // heads
