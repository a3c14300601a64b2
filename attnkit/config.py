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

from attnkit.errors import DTypeError
from attnkit.masks import Mask

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


class Config(BaseModel):
    """What every configuration has in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


class RopeConfig(Config):
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


class AttentionConfig(Config):
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
        return filled_from(data, num_kv_heads="num_heads", value_dim="head_dim")

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


def filled_from(data: Mapping[str, Any], **sources: str) -> dict[str, Any]:
    """Give fields in which those that are absent or ``None`` have the value of another, ``name="source"``."""
    filled = dict(data)
    for name, source in sources.items():
        if filled.get(name) is None and source in filled:
            filled[name] = filled[source]
    return filled


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
