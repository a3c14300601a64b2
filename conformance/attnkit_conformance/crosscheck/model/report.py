"""What a comparison layer by layer found, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attnkit_conformance.crosscheck.judging import Name
from attnkit_conformance.crosscheck.picture import Data


class Place(Data):
    """Where something is: layers, heads and tokens count from 0."""

    layer: int
    head: int
    token: int


class LayerLine(Data):
    """One layer.

    Attributes
    ----------
    layer
        Its number.
    error
        For each side the largest error of its attention in units of its bound, on the very inputs of A's run.
    apart
        The largest distance of the two on these inputs, in units of both bounds.
    drift
        Relative distance of the attention outputs where each side runs by itself, ``|A - B| / |A|``: what earlier
        layers did is in it.
    """

    layer: int
    error: Mapping[Name, float]
    apart: float
    drift: float


class Effect(Data):
    """What became of the model's answer.

    Attributes
    ----------
    largest
        Largest difference of two logits.
    divergence
        Mean Kullback-Leibler divergence of the next token's distribution, in nats.
    flips
        Tokens whose most probable successor is another one.
    nll
        Mean negative log-likelihood of the text, in nats.
    """

    largest: float
    divergence: float
    flips: int
    nll: Mapping[Name, float]


class ModelReport(Data):
    """What a comparison layer by layer found.

    Attributes
    ----------
    sides
        Names of the backends.
    model, tokens, dtype
        What was run.
    layers
        One line each.
    first
        For each side that is wrong, the first layer in which it is, and there the place of its largest error.
    parted
        Where the two, each running by itself, were first further apart than rounding of that layer alone explains.
    effect
        On the logits.
    """

    format: Literal["attnkit-crosscheck-model/1"] = "attnkit-crosscheck-model/1"
    sides: Mapping[Name, str]
    model: str
    tokens: int
    dtype: str
    layers: list[LayerLine]
    first: Mapping[Name, Place]
    parted: Place | None
    effect: Effect

    @property
    def agree(self) -> bool:
        """Whether the attention of both sides is within its bounds in every layer."""
        return not self.first
