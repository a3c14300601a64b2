"""Configurations: frozen, checked where they are made, JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from attnkit.errors import DTypeError, ShapeError
from attnkit.masks import Mask
from attnkit.structure import FARTHEST

DType = Literal["float16", "bfloat16", "float32", "float64"]
MaskField = Annotated[
    Mask,
    BeforeValidator(lambda data: _read_mask(data) if isinstance(data, Mapping) else data),
    PlainSerializer(lambda mask: mask.to_dict(), return_type=dict),
]


def _read_mask(data: Mapping[str, Any]) -> Mask:
    try:
        return Mask.from_dict(data)
    except DTypeError as error:  # pydantic reports a ValueError together with the other faults, a TypeError not
        raise ValueError(str(error)) from error


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


class RopeConfig(_Config):
    """Rotary position embedding.

    Attributes
    ----------
    theta
        Base of the frequencies ``theta ** (-2 i / dim)``.
    dim
        How many leading features of a head are rotated; ``None`` = all.
    style
        ``"half"`` pairs feature ``i`` with ``i + dim/2``; ``"interleaved"`` pairs ``2 i`` with ``2 i + 1``.
    """

    theta: PositiveFloat = 10000.0
    dim: PositiveInt | None = None
    style: Literal["half", "interleaved"] = "half"

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.dim is not None and self.dim % 2:
            raise ValueError(f"rope.dim must be even, got {self.dim}")
        return self


class AttentionConfig(_Config):
    """One attention layer.

    Attributes
    ----------
    num_heads, num_kv_heads
        ``H`` and ``K``, ``H % K == 0``; ``num_kv_heads=None`` means ``H``.
    head_dim, value_dim
        ``D`` and ``E``; ``value_dim=None`` means ``D``.
    mask
        Which keys a query sees; ``None`` = all.
    scale
        Default ``1 / sqrt(D)``.
    softcap
        Cap on the scores.
    rope
        Rotary position embedding of queries and keys; ``None`` = none.
    """

    num_heads: PositiveInt
    head_dim: PositiveInt
    num_kv_heads: PositiveInt = None  # type: ignore[assignment]  # filled in from num_heads below
    value_dim: PositiveInt = None  # type: ignore[assignment]  # filled in from head_dim below
    mask: MaskField | None = None
    scale: float | None = None
    softcap: PositiveFloat | None = None
    rope: RopeConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        filled = dict(data)
        for name, source in (("num_kv_heads", "num_heads"), ("value_dim", "head_dim")):
            if filled.get(name) is None and source in filled:
                filled[name] = filled[source]
        return filled

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        rotated = self.rope and (self.rope.dim or self.head_dim)
        if rotated and (rotated > self.head_dim or rotated % 2):
            raise ValueError(f"rope.dim must be even and <= head_dim = {self.head_dim}, got {rotated}")
        return self

    @classmethod
    def from_hf(cls, source: Mapping[str, Any] | str | Path, *, layer: int = 0) -> Self:
        """Read the attention of one layer from a Hugging Face ``config.json``.

        Parameters
        ----------
        source
            The parsed configuration, or the path of the file or of its directory.
        layer
            Which layer, for families whose layers alternate between windows and full attention.

        Raises
        ------
        ValueError
            If the family is unknown, a key is missing, or a feature is not expressible (with its name).
        """
        from attnkit.hf_config import attention_fields

        return cls(**attention_fields(read_json(source), layer))


class KVCacheConfig(_Config):
    """A KV cache.

    Attributes
    ----------
    num_layers, batch_size
        Layers and sequences.
    num_kv_heads, head_dim, value_dim
        ``K``, ``D``, ``E``; ``value_dim=None`` means ``D``.
    layout
        ``"contiguous"``.
    max_length
        Tokens a sequence may hold; ``None`` = grows.
    dtype
        Element type of the stored keys and values.
    """

    num_layers: PositiveInt = 1
    batch_size: PositiveInt = 1
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    value_dim: PositiveInt = None  # type: ignore[assignment]  # filled in from head_dim below
    layout: Literal["contiguous"] = "contiguous"
    max_length: PositiveInt | None = None
    dtype: DType = "float32"

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("value_dim") is None and "head_dim" in data:
            return {**data, "value_dim": data["head_dim"]}
        return data

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence takes over all layers."""
        size = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[self.dtype]
        return self.num_layers * self.num_kv_heads * (self.head_dim + self.value_dim) * size

    def capacity_for(self, length: int) -> int:
        """Give the tokens that a sequence has room for once it has held ``length``: the rule by which a cache grows.

        Fixed caches hold ``max_length`` from the start; growing ones go up in quarters of a power of two, at least 64,
        so that at most a fifth lies idle and appending stays O(1) a token.
        """
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= FARTHEST:
            raise ShapeError(f"length must be an integer in 0..2**53, got {length!r}")
        if self.max_length is not None:
            return self.max_length
        return _round_up(length, _granule(length))

    def bytes_for(self, length: int) -> int:
        """Give the bytes allocated for all sequences once the longest has held ``length`` tokens."""
        return self.bytes_per_token * self.batch_size * self.capacity_for(length)

    def longest_for(self, memory: int) -> int:
        """Give the longest context, in tokens of each sequence, whose allocation fits into ``memory`` bytes."""
        room = max(memory, 0) // (self.bytes_per_token * self.batch_size)
        if self.max_length is not None:
            return self.max_length if self.max_length <= room else 0
        return room - room % _granule(room)


def _granule(length: int) -> int:
    return max(64, 1 << max(length.bit_length() - 3, 0))


def _round_up(length: int, granule: int) -> int:
    return -(-length // granule) * granule


def read_json(source: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """Give a parsed configuration from itself, a ``config.json``, or the directory of one."""
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    try:
        data = json.loads((path / "config.json" if path.is_dir() else path).read_text("utf-8"))
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply for a configuration") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: a configuration must be a JSON object, got {type(data).__name__}")
    return data
