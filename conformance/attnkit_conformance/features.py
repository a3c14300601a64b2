"""Features of a call, each with a few values, and the call that a choice of one value each makes.

The first value of a feature is the neutral one: it asks a backend for nothing but the core.

Axes: ``B`` batch, ``H`` query heads, ``K`` key/value heads, ``T`` query length, ``S`` key length, ``D`` query/key head
size, ``E`` value head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

import attnkit as ak
from attnkit_conformance.cases import DTYPES, Array, Case
from attnkit_conformance.covering import Choice
from attnkit_conformance.draws import DRAWS


class Sizes(NamedTuple):
    """Sizes of a call that do not follow from its features: ``B``, ``T``, ``S``, ``D``."""

    batch: int
    queries: int
    keys: int
    head_dim: int


GROUPS: Final = {"each": (2, 2), "pairs": (4, 2), "all": (3, 1)}
"""``H`` and ``K``."""

_TILES: Final = (16, 32, 64, 128)
LENGTHS: Final = tuple(
    sorted({1, 2, 3, 5, 7, 13, 61, 113, *(n for tile in _TILES for n in (tile - 1, tile, tile + 1, 2 * tile + 1))})
)
"""Around the edges of tiles, and primes."""

SHAPES: Final = {"T=S": (7, 7), "decode": (1, 17), "T<S": (3, 11), "T>S": (11, 3), "odd": (33, 67)}
"""``T`` and ``S``."""

FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "mask": ("", "causal", "window", "prefix", "chunked", "documents", "dense"),
    "join": ("", "with-window", "with-chunked", "with-documents", "with-dense"),
    "draw": ("normal", *(name for name in DRAWS if name != "normal")),
    "shape": tuple(SHAPES),
    "dtype": DTYPES,
    "lengths": ("", "kv-lengths", "query-lengths", "both-lengths"),
    "offsets": ("", "query-offset", "key-offset", "both-offsets"),
    "group": tuple(GROUPS),
    "width": ("", "narrow", "wide"),
    "bias": ("", "bias", "hiding-bias"),
    "alibi": ("", "alibi"),
    "softcap": ("", "softcap"),
    "sinks": ("", "sinks"),
    "lse": ("", "lse"),
}
_OF_POSITIONS: Final = {
    "causal": ak.Mask.causal(),
    "window": ak.Mask.window(4, 1),
    "prefix": ak.Mask.prefix(3),
    "chunked": ak.Mask.chunked(4),
    "with-window": ak.Mask.window(5, 2),
    "with-chunked": ak.Mask.chunked(6),
}
NEUTRAL: Final[Choice] = {name: values[0] for name, values in FEATURES.items()}
_TOLD_BY_SIZES: Final = {"draw", "shape", "dtype", "group", "width"}


def fields(choice: Choice, sizes: Sizes, rng: np.random.Generator) -> dict[str, Any]:
    """Give the fields of the case that a choice makes, its arrays drawn at random."""
    heads, kv_heads = GROUPS[choice["group"]]
    options = {
        "mask": _joined(_mask(choice["mask"], sizes, rng), _mask(choice["join"], sizes, rng)),
        "bias": _bias(choice["bias"], heads, sizes, rng),
        "alibi": _floats(rng, heads, low=0) if choice["alibi"] else None,
        "softcap": 2.0 if choice["softcap"] else None,
        "sinks": _floats(rng, heads) if choice["sinks"] else None,
        **_lengths(choice["lengths"], sizes, rng),
        **_offsets(choice["offsets"], sizes, rng),
    }
    return {
        **sizes._asdict(),
        "label": label(choice),
        "heads": heads,
        "kv_heads": kv_heads,
        "value_dim": {"": 0, "narrow": max(1, sizes.head_dim // 2), "wide": sizes.head_dim + 8}[choice["width"]],
        "dtype": choice["dtype"],
        "draw": choice["draw"],
        "lse": bool(choice["lse"]),
        "options": {name: option for name, option in options.items() if option is not None},
    }


def label(choice: Choice) -> str:
    """Name what a choice asks for, beside what the name of every case says."""
    return "+".join(value for name, value in choice.items() if value and name not in _TOLD_BY_SIZES) or "plain"


def declared(name: str, value: str, capabilities: ak.Capabilities) -> bool:
    """Tell whether a backend declares a value of a feature."""
    if name == "dtype":
        return value in capabilities.dtypes
    choice = {**NEUTRAL, name: value}
    asked = Case(**fields(choice, Sizes(2, 3, 3, 16), np.random.default_rng(0))).on(capabilities)
    return not asked.undeclared(capabilities)


def declared_values(capabilities: ak.Capabilities) -> Mapping[str, Sequence[str]]:
    """Give the values of each feature that a backend declares, the simplest first, or else the neutral one."""
    found = {
        name: [value for value in values if declared(name, value, capabilities)] for name, values in FEATURES.items()
    }
    return {name: values or [NEUTRAL[name]] for name, values in found.items()}


def _mask(kind: str, sizes: Sizes, rng: np.random.Generator) -> ak.Mask | None:
    """Give a mask, or ``with-`` its name another one of the same kind."""
    if kind.endswith("documents"):
        return _documents(sizes, rng, count=2 if kind.startswith("with") else 3)
    if kind.endswith("dense"):
        shape = (sizes.queries, sizes.keys) if kind.startswith("with") else (sizes.batch, 1, sizes.queries, sizes.keys)
        return ak.Mask.dense(rng.random(shape) < 0.7)
    return _OF_POSITIONS.get(kind)


def _joined(one: ak.Mask | None, other: ak.Mask | None) -> ak.Mask | None:
    return one & other if one is not None and other is not None else one or other


def _documents(sizes: Sizes, rng: np.random.Generator, count: int) -> ak.Mask:
    """Give ids for each sequence of queries and keys."""
    queries, keys = ((sizes.batch, length) for length in (sizes.queries, sizes.keys))
    return ak.Mask.documents(rng.integers(0, count, queries), rng.integers(0, count, keys))


def _floats(rng: np.random.Generator, *shape: int, low: float = -1.5) -> Array:
    return rng.uniform(low, 1.5, shape).astype(np.float32)


def _bias(kind: str, heads: int, sizes: Sizes, rng: np.random.Generator) -> Array | None:
    """Give floats for every score, or for every head's keys and ``-inf`` among them."""
    if not kind:
        return None
    if kind == "bias":
        return _floats(rng, sizes.batch, heads, sizes.queries, sizes.keys)
    bias = _floats(rng, heads, 1, sizes.keys)
    return np.where(rng.random(bias.shape) < 0.3, np.float32(-np.inf), bias)


def _lengths(kind: str, sizes: Sizes, rng: np.random.Generator) -> dict[str, Array]:
    drawn = {
        "kv-lengths": ("kv_lengths", rng.integers(0, sizes.keys + 1, sizes.batch)),
        "query-lengths": ("query_lengths", rng.integers(0, sizes.queries + 1, sizes.batch)),
    }
    return dict(pair for name, pair in drawn.items() if kind in (name, "both-lengths"))


def _offsets(kind: str, sizes: Sizes, rng: np.random.Generator) -> dict[str, Array]:
    drawn = {
        "query-offset": ("query_offset", rng.integers(-2, sizes.keys + 3, sizes.batch)),
        "key-offset": ("key_offset", rng.integers(0, 4, sizes.batch)),
    }
    return dict(pair for name, pair in drawn.items() if kind in (name, "both-offsets"))
