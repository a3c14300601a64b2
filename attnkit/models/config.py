"""What a Llama-family model is, read from GGUF metadata or from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from attnkit.models.errors import ModelError

MAX_LAYERS = 4096  # a damaged file must not make us list the weights of billions of layers


class LlamaConfig(BaseModel):
    """Shapes and constants of a Llama-family decoder.

    Attributes
    ----------
    vocab_size, hidden_size, intermediate_size, num_layers
        Sizes of the vocabulary, of a hidden vector, of the SwiGLU layer, and the number of blocks.
    num_heads, num_kv_heads, head_dim
        Query heads ``H``, key/value heads ``K`` (``H % K == 0``) and the size ``D`` of each (even, for rotation).
    rms_norm_eps, rope_theta
        Constants of RMSNorm and of the rotary embedding.
    max_positions
        Longest context the model was trained for.
    tie_embeddings
        Whether the output projection is the embedding itself.
    bos_id, eos_ids
        Token that begins a text, tokens that end one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    rms_norm_eps: PositiveFloat
    rope_theta: PositiveFloat
    max_positions: PositiveInt
    tie_embeddings: bool = False
    bos_id: NonNegativeInt | None = None
    eos_ids: tuple[NonNegativeInt, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary embedding needs pairs")
        return self

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, tie_embeddings: bool = True) -> LlamaConfig:
        """Read the metadata of a GGUF file.

        Parameters
        ----------
        metadata
            Key to value, as in ``GGUFFile.metadata``.
        tie_embeddings
            A GGUF file says so by having no ``output.weight``, which its metadata does not tell.

        Raises
        ------
        ModelError
            If a key is missing or out of range, or if the file describes a model of another kind.
        """
        _refuse(_gguf_objections(metadata))
        heads = _need(metadata, "llama.attention.head_count")
        hidden = _need(metadata, "llama.embedding_length")
        eos = metadata.get("tokenizer.ggml.eos_token_id")
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        return _build(
            vocab_size=metadata.get("llama.vocab_size", len(tokens)),
            hidden_size=hidden,
            intermediate_size=_need(metadata, "llama.feed_forward_length"),
            num_layers=_need(metadata, "llama.block_count"),
            num_heads=heads,
            num_kv_heads=metadata.get("llama.attention.head_count_kv", heads),
            head_dim=metadata.get("llama.attention.key_length", _ratio(hidden, heads)),
            rms_norm_eps=_need(metadata, "llama.attention.layer_norm_rms_epsilon"),
            rope_theta=metadata.get("llama.rope.freq_base", 10000.0),
            max_positions=_need(metadata, "llama.context_length"),
            tie_embeddings=tie_embeddings,
            bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=() if eos is None else (eos,),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Read the dictionary of a Hugging Face ``config.json``.

        Raises
        ------
        ModelError
            If a key is missing or out of range, or if it describes a model of another kind.
        """
        _refuse(_hf_objections(config))
        heads = _need(config, "num_attention_heads")
        hidden = _need(config, "hidden_size")
        eos = config.get("eos_token_id")
        rope = config.get("rope_parameters") or {}
        return _build(
            vocab_size=_need(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_need(config, "intermediate_size"),
            num_layers=_need(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_or(config.get("num_key_value_heads"), heads),
            head_dim=_or(config.get("head_dim"), _ratio(hidden, heads)),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            max_positions=config.get("max_position_embeddings", 2048),
            tie_embeddings=config.get("tie_word_embeddings", False),
            bos_id=config.get("bos_token_id"),
            eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        )


def _gguf_objections(metadata: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Give ``key: (found, understood)`` for what this decoder would get wrong."""
    if metadata.get("general.architecture") != "llama":
        return {"general.architecture": (metadata.get("general.architecture"), "llama")}
    head_dim = metadata.get("llama.attention.key_length") or _ratio(
        _need(metadata, "llama.embedding_length"), _need(metadata, "llama.attention.head_count")
    )
    understood = {
        "llama.rope.scaling.type": "none",
        "llama.rope.dimension_count": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.expert_count": 0,
    }
    return {key: (metadata[key], want) for key, want in understood.items() if metadata.get(key, want) != want}


def _hf_objections(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Give ``key: (found, understood)`` for what this decoder would get wrong."""
    understood: dict[str, Any] = {
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "partial_rotary_factor": 1.0,
    }
    wrong: dict[str, tuple[Any, Any]] = {
        key: (config[key], want) for key, want in understood.items() if config.get(key, want) != want
    }
    if "model_type" not in config:
        wrong["model_type"] = (None, "llama")
    rope = config.get("rope_parameters")
    if rope is not None and not (isinstance(rope, dict) and rope.get("rope_type", "default") == "default"):
        wrong["rope_parameters"] = (rope, {"rope_type": "default"})
    return wrong


def _refuse(wrong: Mapping[str, tuple[Any, Any]]) -> None:
    if wrong:
        lines = [f"{key} is {found!r}, only {want!r} is understood" for key, (found, want) in wrong.items()]
        raise ModelError("not a model that this decoder can run: " + "; ".join(lines))


def _need(values: Mapping[str, Any], key: str) -> Any:
    if values.get(key) is None:
        raise ModelError(f"{key} is missing")
    return values[key]


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _ratio(hidden: Any, heads: Any) -> int:
    """Divide, with 0 (which no field accepts) for what cannot be divided."""
    whole = isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0
    return hidden // heads if whole else 0


def _build(**fields: Any) -> LlamaConfig:
    try:
        return LlamaConfig(**fields)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {_short(e['input'])}" for e in error.errors()]
        raise ModelError("; ".join(found)) from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
