"""The weights of a decoder under one set of names, wherever they come from.

Axes: ``n`` hidden, ``F`` intermediate, ``H`` query heads, ``K`` key/value heads, ``D`` head size, ``V`` vocabulary.
Matrices are ``[out, in]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.models.config import LlamaConfig
from attnkit.models.errors import ModelError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Arrays that are read one at a time, so that two copies of a model are never held.

    Parameters
    ----------
    origin
        Where they come from, for messages.
    shapes
        Shape of every array by its name in ``expected_shapes``.
    read
        Gives one array by that name; it may be read-only.
    """

    origin: str
    shapes: Mapping[str, Shape]
    read: Callable[[str], np.ndarray[Any, Any]]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Weights:
        """Take arrays that are in memory already."""
        return cls("arrays", {name: array.shape for name, array in arrays.items()}, arrays.__getitem__)


def expected_shapes(config: LlamaConfig) -> dict[str, Shape]:
    """Give the name and shape of every array of a model."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {"embed": (vocabulary, hidden), "norm": (hidden,)}
    if not config.tie_embeddings:
        shapes["head"] = (vocabulary, hidden)
    for layer in range(config.num_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: LlamaConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "mlp_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }


def check_shapes(origin: str, found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> None:
    """Raise ``ModelError`` naming every array that is missing, unexpected or of the wrong shape."""
    wrong = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != shape
    ]
    faults = [
        _listed("missing", [name for name in expected if name not in found]),
        _listed("unexpected", [f"{name} {list(shape)}" for name, shape in found.items() if name not in expected]),
        _listed("wrong shape", wrong),
    ]
    if any(faults):
        raise ModelError(f"{origin}: the weights do not fit the configuration: " + "; ".join(filter(None, faults)))


def _listed(title: str, names: Iterable[str], limit: int = 5) -> str:
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{title}: {', '.join(names[:limit])}{more}" if names else ""
